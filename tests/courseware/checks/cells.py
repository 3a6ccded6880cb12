"""Functions as a notebook's cells define them."""

import zlib

import numpy as np

from courseware.editing import run_source


def function_of(source):
    """The function that a cell of this source defines last. Its line numbers count within the cell."""
    namespace = {"np": np}
    run_source(source, f"<cell {zlib.crc32(source.encode()):08x}>", namespace)
    return list(namespace.values())[-1]
