"""One module per explorer: a pure model, and the page that it gives for what its controls choose.

The model computes nothing of its own: its numbers come from `course_lib`, the simulators or a recorded file. A page is
drawn in Python, and the same page is a static image in a notebook where there is no kernel. `explore` makes an
explorer; what is named draw gives a page of it that stands still. `figures` has the lessons' other pictures.

svg        panels with axes, and pages of them; the course's colours
explorer   controls, and pages with and without a kernel; explorer.js shows them
words      numbers and tables in words and HTML
"""
