"""NumPy's integers count as Python's: the square of np.int32(65536) is 4,294,967,296 and not 0."""

import functools
from numbers import Integral


def python_integers(function):
    """The function, called with every integer among its arguments, alone or in a tuple or list, as Python's int.

    Sizes that were read off an array then neither overflow nor lack a method such as `bit_length`, and a message shows
    them as 5 and not as np.int64(5). A bool stays a bool, so that the function can refuse it.
    """

    @functools.wraps(function)
    def call(*arguments, **named):
        return function(*map(_plain, arguments), **{name: _plain(value) for name, value in named.items()})

    return call


def _plain(value):
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
