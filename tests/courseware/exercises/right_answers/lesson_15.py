"""Lesson 15: right answers written differently."""

import math
from fractions import Fraction

import numpy as np


def phases_by_walking(query_tile, key_tile, key_tiles, stages):
    """As a kernel keeps them: a stage and a phase that move on from tile to tile."""
    stage, phase = 0, 0
    for _ in range(query_tile * key_tiles + key_tile):
        stage += 1
        if stage == stages:
            stage, phase = 0, phase ^ 1
    return [stage, phase, phase ^ 1]


def phases_by_counting(query_tile, key_tile, key_tiles, stages):
    round_, stage = np.divmod(key_tile + key_tiles * query_tile, stages)
    return stage, round_ & 1, (round_ - 1) & 1


def jobs_as_generators(tiles, stages):
    def produce():
        stage, phase = 0, 1
        for tile in range(tiles):
            yield ["wait", "empty", stage, phase]
            yield ["expect", "ready", stage]
            yield ["copy", stage, tile]
            stage += 1
            if stage == stages:
                stage, phase = 0, 1 - phase

    def consume():
        stage, phase = 0, 0
        for tile in range(tiles):
            yield ["wait", "ready", stage, phase]
            yield ["mma", stage, tile]
            yield ["mma_wait", 0]
            yield ["arrive", "empty", stage]
            yield ["softmax", tile]
            stage += 1
            if stage == stages:
                stage, phase = 0, 1 - phase

    return list(produce()), list(consume())


def jobs_without_the_last_hand_backs(tiles, stages):
    """Nothing is handed back that no copy waits for."""
    producer, consumer = jobs_without_the_first_waits(tiles, stages)
    last = range(max(0, tiles - stages), tiles)
    ends = {consumer.index(("softmax", tile)) - 1 for tile in last}
    return producer, [operation for place, operation in enumerate(consumer) if place not in ends]


def jobs_without_the_first_waits(tiles, stages):
    """The producer does not wait in the first round."""
    producer, consumer = [], []
    for tile in range(tiles):
        round_, stage = divmod(tile, stages)
        if round_:
            producer += [("wait", "empty", stage, (round_ - 1) % 2)]
        producer += [("expect", "ready", stage), ("copy", stage, tile)]
        consumer += [("wait", "ready", stage, round_ % 2), ("mma", stage, tile), ("mma_wait", 0)]
        consumer += [("arrive", "empty", stage), ("softmax", tile)]
    return producer, consumer


def longest_circle(copy, latency, product, softmax, stages, consumers, next_first=False):
    circles = [
        (copy, 1),
        (product * consumers, 1),
        (softmax * consumers, 1),
        (latency + copy + consumers * product, stages),
    ]
    circles += [(copy + latency, stages - 1)] if next_first else [(product + softmax, 1)]
    if any(tiles == 0 for _, tiles in circles):
        return math.inf
    return max(Fraction(cycles, tiles) for cycles, tiles in circles)


def by_recurrence(copy, latency, product, softmax, stages, consumers, next_first=False):
    """Tile by tile, for long enough that the beginning no longer counts."""
    if next_first and stages == 1:
        return float("inf")
    n, engine, tensor, lanes = 240, 0, 0, 0
    handed_back, done = [0] * stages, [0] * consumers
    ready, finished, ends = [], [[] for _ in range(consumers)], []

    def fetch():
        nonlocal engine
        engine = max(engine, handed_back[len(ready) % stages]) + copy
        ready.append(engine + latency)

    if not next_first:
        for tile in range(n):
            fetch()
            for c in range(consumers):
                tensor = max(tensor, ready[tile], done[c]) + product
                finished[c] = tensor
            handed_back[tile % stages] = tensor
            for c in range(consumers):
                lanes = max(lanes, finished[c]) + softmax
                done[c] = lanes
            ends.append(lanes)
    else:
        fetch()
        started = [0] * consumers
        for c in range(consumers):
            tensor = max(tensor, ready[0]) + product
            started[c] = tensor
        for tile in range(n):
            fetch()
            this, issued = list(started), [max(ready[tile + 1], done[c]) for c in range(consumers)]
            for c in range(consumers):
                tensor = max(tensor, issued[c]) + product
                started[c] = tensor
            handed_back[tile % stages] = max(max(this[c], issued[c]) for c in range(consumers))
            for c in range(consumers):
                lanes = max(lanes, this[c], issued[c]) + softmax
                done[c] = lanes
            ends.append(lanes)
    return (ends[-1] - ends[-121]) / 120


RIGHT_ANSWERS = {
    "barrier_phases": {"by walking": phases_by_walking, "by counting": phases_by_counting},
    "producer_consumer": {
        "as generators": jobs_as_generators,
        "without the first waits": jobs_without_the_first_waits,
        "without the last hand-backs": jobs_without_the_last_hand_backs,
    },
    "schedule": {"the longest circle": longest_circle, "by recurrence": by_recurrence},
}
