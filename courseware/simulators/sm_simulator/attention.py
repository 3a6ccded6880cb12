"""Lesson 15's attention forward as jobs on a simulated SM: every rung, to be read beside kernels/hopper/forward.py.

A thread block has one query tile of 64 rows for each group that computes, and visits the key tiles in the same order.
What each operation costs is counted at the rates of an H100, and nothing is fitted to a kernel's time:

    S = Q K^T and O += P V    2 * 64 * block_k * head_dim FLOPs each
    max      the row maxima: an instruction for each score, of the kind that runs at half rate
    exp      for each score an exponential, and INSTRUCTIONS_PER_EXP instructions around it
    rescale  O times alpha: an instruction for each of its elements

Left out, so that a GPU is slower: the time that barriers, issuing and shuffles take, what a product takes beyond its
FLOPs until its result is there, how a compiler orders instructions, and the clock, which falls at the power limit.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

from course_lib.hardware import GPUS
from course_lib.integers import python_integers

from .parts import H100, Run
from .simulator import SM, compute, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

BLOCK_M = 64  # query rows of a group: those of one wgmma instruction
ELEMENT_BYTES = 2
# Subtract the maximum, scale, add to the row's sum, and half a conversion to fp16, which takes two.
INSTRUCTIONS_PER_EXP = 3.5


class Block:
    """A thread block: its sizes, and what its groups share: stages, and barriers that say one is ready or empty."""

    def __init__(self, sm, head_dim, block_k, stages, key_tiles, consumers):
        self.stages, self.key_tiles, self.consumers = stages, key_tiles, consumers
        self.scores, self.outputs = BLOCK_M * block_k, BLOCK_M * head_dim  # elements of a group's tile
        self.product_flops = 2 * self.scores * head_dim
        self.query_bytes, key_bytes = BLOCK_M * head_dim * ELEMENT_BYTES, block_k * head_dim * ELEMENT_BYTES
        self.q_smem = sm.allocate_shared_memory("Q", consumers, self.query_bytes)
        self.k_smem = sm.allocate_shared_memory("K", stages, key_bytes, readers=consumers)
        self.v_smem = sm.allocate_shared_memory("V", stages, key_bytes, readers=consumers)
        self.q_ready, self.turn = sm.barriers("q_ready", consumers, 1), sm.barriers("turn", 2, 1)
        self.k_ready, self.k_empty = sm.barriers("k_ready", stages, 1), sm.barriers("k_empty", stages, consumers)
        self.v_ready, self.v_empty = sm.barriers("v_ready", stages, 1), sm.barriers("v_empty", stages, consumers)


def scores(b, q, k, tile):
    """The product S = Q K^T of a tile of keys."""
    return warpgroup_mma(f"S {tile}", b.product_flops, {q: 0, k: tile})


def values(b, v, tile):
    """The product O += P V. P is in registers."""
    return warpgroup_mma(f"O {tile}", b.product_flops, {v: tile})


def softmax(b, S, of):
    """The row maxima, and then P."""
    yield compute(f"max {of}", instructions=b.scores, maxima=b.scores, of=[S])
    yield compute(f"exp {of}", exps=b.scores, instructions=INSTRUCTIONS_PER_EXP * b.scores)


def rescale(b, O, of):
    """O times alpha, once the product that made O is done."""
    return compute(f"rescale {of}", instructions=b.outputs, of=O)


def store(b, O):
    """O / l, and its copy to device memory."""
    yield rescale(b, O, "the end")
    yield tma.async_copy_shared_to_global(b.query_bytes)


def fetch(tile, barrier, *stages):
    """Copies into these stages, whose bytes the barrier is told to expect."""
    yield mbarrier.expect(barrier, sum(stage.n_bytes for stage in stages))
    for stage in stages:
        yield tma.async_copy_global_to_shared(tile, barrier, stage)


def one_group(b):
    """Rung "one group": it asks for tiles, stages - 1 ahead, and computes in turn. K and V have one barrier."""

    def fetch_keys(tile):
        stage = tile % b.stages
        return fetch(tile, b.k_ready[stage], b.k_smem[stage], b.v_smem[stage])

    yield from fetch(0, b.q_ready[0], b.q_smem[0])
    for tile in range(min(b.stages - 1, b.key_tiles)):
        yield from fetch_keys(tile)
    yield mbarrier.wait(b.q_ready[0], 0)
    O = []
    for tile in range(b.key_tiles):
        stage, ahead = tile % b.stages, tile + b.stages - 1
        if ahead < b.key_tiles:
            yield from fetch_keys(ahead)  # into the stage that the last tile has left
        yield mbarrier.wait(b.k_ready[stage], tile // b.stages & 1)
        S = yield scores(b, b.q_smem[0], b.k_smem[stage], tile)
        yield warpgroup_mma_wait(0)
        yield from softmax(b, S, tile)
        yield rescale(b, O, tile)
        O = [(yield values(b, b.v_smem[stage], tile))]
        yield warpgroup_mma_wait(0)
    yield from store(b, O)


def producer(b):
    """The warp that fetches: each stage as soon as all groups that compute have handed it back."""
    for group in range(b.consumers):
        yield from fetch(0, b.q_ready[group], b.q_smem[group])
    for tile in range(b.key_tiles):
        stage, phase = tile % b.stages, tile // b.stages & 1
        yield mbarrier.wait(b.k_empty[stage], phase ^ 1)
        yield from fetch(tile, b.k_ready[stage], b.k_smem[stage])
        yield mbarrier.wait(b.v_empty[stage], phase ^ 1)
        yield from fetch(tile, b.v_ready[stage], b.v_smem[stage])


def scores_and_softmax(b, group, tile):
    """Of a tile whose product nothing else overlaps."""
    stage = tile % b.stages
    yield mbarrier.wait(b.k_ready[stage], tile // b.stages & 1)
    S = yield scores(b, b.q_smem[group], b.k_smem[stage], tile)
    yield warpgroup_mma_wait(0)
    yield mbarrier.arrive(b.k_empty[stage])
    yield from softmax(b, S, tile)


def output(b, tile):
    """O += P V of such a tile; returns [the product]."""
    stage = tile % b.stages
    yield mbarrier.wait(b.v_ready[stage], tile // b.stages & 1)
    O = yield values(b, b.v_smem[stage], tile)
    yield warpgroup_mma_wait(0)
    yield mbarrier.arrive(b.v_empty[stage])
    return [O]


def consumer(b, group):
    """Rung "a warp that fetches": products and softmax of each tile in turn."""
    yield mbarrier.wait(b.q_ready[group], 0)
    O = []
    for tile in range(b.key_tiles):
        yield from scores_and_softmax(b, group, tile)
        yield rescale(b, O, tile)
        O = yield from output(b, tile)
    yield from store(b, O)


def consumer_next_first(b, group, turns=False):
    """Rungs "next scores first" and, with turns, "groups take turns".

    S of the next tile is started first, then O += P V of the tile before. The softmax of the next tile follows while
    the tensor cores still work on the latter.
    """
    yield mbarrier.wait(b.q_ready[group], 0)
    yield from scores_and_softmax(b, group, 0)
    for tile in range(b.key_tiles - 1):
        stage, next_stage = tile % b.stages, (tile + 1) % b.stages
        yield mbarrier.wait(b.k_ready[next_stage], (tile + 1) // b.stages & 1)
        if turns:
            yield mbarrier.wait(b.turn[group], tile & 1 ^ (1 - group))  # the first turn is group 0's
        S = yield scores(b, b.q_smem[group], b.k_smem[next_stage], tile + 1)
        yield mbarrier.wait(b.v_ready[stage], tile // b.stages & 1)
        O = yield values(b, b.v_smem[stage], tile)
        if turns:
            yield mbarrier.arrive(b.turn[1 - group])
        yield warpgroup_mma_wait(1)  # until only the last product is under way
        yield mbarrier.arrive(b.k_empty[next_stage])
        yield from softmax(b, S, tile + 1)
        yield warpgroup_mma_wait(0)
        yield mbarrier.arrive(b.v_empty[stage])
        yield rescale(b, [O], tile + 1)
    O = yield from output(b, b.key_tiles - 1)
    yield from store(b, O)


CONSUMERS = {
    "a warp that fetches": consumer, "next scores first": consumer_next_first,
    "groups take turns": partial(consumer_next_first, turns=True),
}  # fmt: skip
RUNGS = ("one group", *CONSUMERS)  # as in hopper_ladder.toml


@python_integers
def simulate(rung, head_dim=128, block_k=128, stages=2, key_tiles=32, *, consumers=2, programs=1, rates=H100) -> Run:
    """Thread blocks of a rung that share an SM, from the first copy to the last store.

    consumers: of the rungs after the first; a block has consumers * 64 rows. programs: how many blocks. Raises
    ValueError for a rung that is none.
    """
    if rung not in RUNGS:
        raise ValueError(f"{rung!r} is none of the rungs {', '.join(map(repr, RUNGS))}")
    if rung == "groups take turns" and consumers != 2:
        raise ValueError(f"two groups take turns, not {consumers}")
    sm, jobs = SM(rates), {}
    for program in range(programs):
        of = f" of program {program}" if programs > 1 else ""
        b = Block(sm, head_dim, block_k, stages, key_tiles, 1 if rung == "one group" else consumers)
        if rung == "one group":
            jobs[f"group{of}"] = one_group(b)
        else:
            sm.allocate_shared_memory("O", consumers, b.query_bytes)  # the next queries are there before it is stored
            jobs[f"producer{of}"] = producer(b)
            jobs |= {f"consumer {group}{of}": CONSUMERS[rung](b, group) for group in range(consumers)}
    return sm.run(jobs)


@dataclass(frozen=True)
class Prediction:
    """cycles_per_key_tile: in the steady state, for the rows of all blocks, which start together.

    tensor_share: the part of these cycles in which the tensor cores work, and tflops what it is worth on the H100 at
    its boost clock, which a GPU at its power limit does not keep.
    """

    cycles_per_key_tile: float
    tensor_share: float
    tflops: float


@lru_cache
@python_integers
def predict(rung, head_dim=128, block_k=128, stages=2, key_tiles=32, **others):
    """The Prediction of a rung from counts alone; arguments as of `simulate`, with two key tiles or more."""
    run, half = (simulate(rung, head_dim, block_k, stages, n, **others) for n in (key_tiles, key_tiles // 2))
    per_tile = (run.cycles - half.cycles) / (key_tiles - key_tiles // 2)
    share = run.share("tensor")
    return Prediction(per_tile, share, share * GPUS["H100"].fp16_tensor_tflops)
