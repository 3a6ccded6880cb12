"""What notebooks show besides figures and explorers: predictions, tables, cards. Each is text and HTML of one content.

page           displays a text and its HTML twin, in one style
predict        a question with options or a number, whose guess is kept and later stands beside the result
table          rows of numbers, aligned
quiz           questions whose options unfold into what is to be said about them
cells          the source of what a notebook's cells define
progress_file  what a learner has done, kept from one session to the next

The HTML needs no script and no kernel, and reads well where its style is removed, as on GitHub.
"""

from .predict import predict
from .table import table

__all__ = ["predict", "table"]
