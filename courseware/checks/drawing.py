"""Draws inputs of a property with Hypothesis, which is imported only where a draw is needed."""

import contextlib
import functools
import random
from collections.abc import Callable

from .exercise import Property


@functools.lru_cache(maxsize=256)
def drawn(prop: Property, seed: int) -> list[dict]:
    """What Hypothesis draws as long as nothing fails, kept: drawing takes longer than most answers do."""
    from hypothesis import errors

    inputs = []
    with contextlib.suppress(errors.NoSuchExample):
        found_by(prop, inputs.append, seed)
    return inputs


def found_by(prop: Property, condition: Callable[[dict], bool], seed: int) -> dict:
    """The smallest input drawn for which the condition holds. Raises Hypothesis's NoSuchExample if there is none."""
    from hypothesis import HealthCheck, Phase, find, settings

    phases, unchecked = (Phase.generate, Phase.shrink), list(HealthCheck)
    quiet = settings(
        max_examples=prop.examples, phases=phases, suppress_health_check=unchecked, database=None, deadline=None
    )
    return find(prop.draw, condition, settings=quiet, random=random.Random(seed))
