"""Ranks in a ring, simulated: a link that counts what it carries, and who computes, sends and waits when."""

from functools import cache
from typing import NamedTuple

import numpy as np


class Link:
    """Joins ranks 0 to ranks - 1 in a ring, each to the next and the last to the first, and counts what each sends.

    gain: so many times what was sent arrives. With another one than 1, a result shows which of its numbers travelled.
    """

    def __init__(self, ranks, gain=1):
        self.gain, self.sent_bytes, self.sends = gain, [0] * ranks, [0] * ranks

    def send(self, rank, array):
        """Send an array from a rank to the next one. Returns what arrives there, an array of its own."""
        if rank not in range(len(self.sent_bytes)):
            raise ValueError(f"rank is {rank}; accepted: 0 to {len(self.sent_bytes) - 1}")
        array = np.asarray(array)
        self.sent_bytes[rank] += array.nbytes
        self.sends[rank] += 1
        return self.gain * array

    def traces(self):
        """What an answer did: two that make the same mistake are recognised by it."""
        return self.sent_bytes, self.sends


class Step(NamedTuple):
    """Seconds at which a step of a rank starts, its arithmetic ends, and its transfer to the next rank begins and ends.

    The last step sends nothing: its transfer begins and ends with the arithmetic.
    """

    start: float
    computed: float
    send: float
    sent: float


def chunks_of(rank, ranks, zigzag):
    """Which of 2 * ranks equal chunks of the sequence a rank holds, in its order."""
    return (rank, 2 * ranks - 1 - rank) if zigzag else (2 * rank, 2 * rank + 1)


def visible_pairs(n, ranks, zigzag):
    """[ranks, steps]: how many pairs of a query and a key each rank sees at each step of the ring, causal.

    n: length of the sequence, a multiple of 2 * ranks. At step s, rank r has the keys of rank (r - s) % ranks.
    """
    chunk = n // (2 * ranks)
    pairs = np.zeros((ranks, ranks), int)
    for rank in range(ranks):
        for step in range(ranks):
            for q in chunks_of(rank, ranks, zigzag):
                for k in chunks_of((rank - step) % ranks, ranks, zigzag):
                    pairs[rank, step] += chunk**2 if k < q else chunk * (chunk + 1) // 2 if k == q else 0
    return pairs


def timeline(compute, transfer):
    """{(rank, step): Step} of a ring in which every rank computes with what it has while that travels on.

    compute: [ranks, steps], seconds of arithmetic. transfer: seconds from a rank to the next. A transfer begins when
    both of its ranks have started the step; a rank starts the next step when it has computed, sent and received.
    """
    ranks = len(compute)

    @cache
    def start(rank, step):
        if step == 0:
            return 0.0
        computed = start(rank, step - 1) + compute[rank][step - 1]
        return max(computed, arrival(rank, step), arrival((rank + 1) % ranks, step))

    def arrival(rank, step):
        """When the keys and values of a step arrive at a rank."""
        return max(start(rank, step - 1), start((rank - 1) % ranks, step - 1)) + transfer

    steps = {}
    for rank in range(ranks):
        for step in range(ranks):
            computed = start(rank, step) + compute[rank][step]
            sent = arrival((rank + 1) % ranks, step + 1) if step + 1 < ranks else computed
            steps[rank, step] = Step(start(rank, step), computed, sent - transfer * (step + 1 < ranks), sent)
    return steps


def waited(compute, transfer):
    """[ranks]: seconds before the end of its last step in which each rank of `timeline` does not compute."""
    steps, last = timeline(compute, transfer), len(compute) - 1
    return [steps[rank, last].computed - sum(compute[rank]) for rank in range(len(compute))]
