"""Lesson 15's attention forward as jobs on a simulated SM: every rung, to be read beside kernels/hopper/forward.py.

A thread block has one query tile of 64 rows for each group that computes, and visits the key tiles in the same order.
What each operation costs is counted, and nothing is fitted to a measurement:

    S = Q K^T and O += P V    2 * 64 * block_k * head_dim FLOPs each
    max      the row maxima: an instruction for each score
    exp      for each score an exponential, and INSTRUCTIONS_PER_EXP instructions around it
    rescale  O times alpha: an instruction for each of its elements

Left out, so that a GPU is slower: the time that barriers, issuing and shuffles take, what a product takes beyond its
FLOPs until its result is there, how a compiler orders instructions, and the clock, which falls at the power limit.
"""

from dataclasses import dataclass
from functools import lru_cache

from course_lib.hardware import GPUS

from .parts import H100, Run
from .simulator import SM, compute, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

BLOCK_M = 64  # query rows of a group: those of one wgmma instruction
ELEMENT_BYTES = 2
# Subtract the maximum (fused with the scale), add to the row's sum, and half a conversion to fp16, which takes two.
INSTRUCTIONS_PER_EXP = 2.5
RUNGS = ("one group", "a warp that fetches", "next scores first", "groups take turns")  # as in hopper_ladder.toml


@dataclass
class Shared:
    """What the groups of a thread block share: stages, and barriers that say that one is ready or empty."""

    q_smem: list
    k_smem: list
    v_smem: list
    q_ready: list
    q_empty: list
    k_ready: list
    k_empty: list
    v_ready: list
    v_empty: list
    turn: list


@dataclass(frozen=True)
class Sizes:
    head_dim: int
    block_k: int
    stages: int
    key_tiles: int
    query_tiles: int
    consumers: int

    @property
    def product_flops(self):
        return 2 * BLOCK_M * self.block_k * self.head_dim

    @property
    def key_bytes(self):
        return self.block_k * self.head_dim * ELEMENT_BYTES

    @property
    def query_bytes(self):
        return BLOCK_M * self.head_dim * ELEMENT_BYTES

    @property
    def scores(self):
        return BLOCK_M * self.block_k


def scores(z, q, t, k, tile):
    """The product S = Q K^T of a tile of keys."""
    return warpgroup_mma(f"S {tile}", z.product_flops, {q: t, k: tile})


def values(z, v, tile):
    """The product O += P V. P is in registers."""
    return warpgroup_mma(f"O {tile}", z.product_flops, {v: tile})


def softmax(z, S, of):
    """The row maxima, and then P."""
    yield compute(f"max {of}", instructions=z.scores, of=[S])
    yield compute(f"exp {of}", exps=z.scores, instructions=INSTRUCTIONS_PER_EXP * z.scores)


def rescale(z, O, of):
    """O times alpha, once the product that made O is done."""
    return compute(f"rescale {of}", instructions=BLOCK_M * z.head_dim, of=O)


def one_group(b, z):
    """Rung "one group": it asks for tiles, stages - 1 ahead, and computes in turn. K and V have one barrier."""

    def fetch_keys(tile):
        stage = tile % z.stages
        yield mbarrier.expect(b.k_ready[stage], 2 * z.key_bytes)
        yield tma.async_copy_global_to_shared(tile, b.k_ready[stage], b.k_smem[stage])
        yield tma.async_copy_global_to_shared(tile, b.k_ready[stage], b.v_smem[stage])

    used = 0
    for i in range(z.query_tiles):
        yield mbarrier.expect(b.q_ready[0], z.query_bytes)
        yield tma.async_copy_global_to_shared(i, b.q_ready[0], b.q_smem[0])
        end, O = used + z.key_tiles, []
        for tile in range(used, min(used + z.stages - 1, end)):
            yield from fetch_keys(tile)
        yield mbarrier.wait(b.q_ready[0], i & 1)
        for _ in range(z.key_tiles):
            stage = used % z.stages
            if used + z.stages - 1 < end:
                yield from fetch_keys(used + z.stages - 1)  # into the stage that the last tile has left
            yield mbarrier.wait(b.k_ready[stage], used // z.stages & 1)
            S = yield scores(z, b.q_smem[0], i, b.k_smem[stage], used)
            yield warpgroup_mma_wait(0)
            yield from softmax(z, S, used)
            yield rescale(z, O, used)
            O = [(yield values(z, b.v_smem[stage], used))]
            yield warpgroup_mma_wait(0)
            used += 1
        yield from store(z, O)


def producer(b, z):
    """The warp that fetches: each stage as soon as all groups that compute have handed it back."""
    fetched = 0
    for i in range(z.query_tiles):
        for group in range(z.consumers):
            yield mbarrier.wait(b.q_empty[group], (i & 1) ^ 1)
            yield mbarrier.expect(b.q_ready[group], z.query_bytes)
            yield tma.async_copy_global_to_shared(i, b.q_ready[group], b.q_smem[group])
        for _ in range(z.key_tiles):
            stage, phase = fetched % z.stages, fetched // z.stages & 1
            yield mbarrier.wait(b.k_empty[stage], phase ^ 1)
            yield mbarrier.expect(b.k_ready[stage], z.key_bytes)
            yield tma.async_copy_global_to_shared(fetched, b.k_ready[stage], b.k_smem[stage])
            yield mbarrier.wait(b.v_empty[stage], phase ^ 1)
            yield mbarrier.expect(b.v_ready[stage], z.key_bytes)
            yield tma.async_copy_global_to_shared(fetched, b.v_ready[stage], b.v_smem[stage])
            fetched += 1


def consumer(b, z, group):
    """Rung "a warp that fetches": products and softmax of each tile in turn."""
    used = 0
    for i in range(z.query_tiles):
        yield mbarrier.wait(b.q_ready[group], i & 1)
        O = []
        for _ in range(z.key_tiles):
            stage, phase = used % z.stages, used // z.stages & 1
            yield mbarrier.wait(b.k_ready[stage], phase)
            S = yield scores(z, b.q_smem[group], i, b.k_smem[stage], used)
            yield warpgroup_mma_wait(0)
            yield mbarrier.arrive(b.k_empty[stage])
            yield from softmax(z, S, used)
            yield rescale(z, O, used)
            yield mbarrier.wait(b.v_ready[stage], phase)
            O = [(yield values(z, b.v_smem[stage], used))]
            yield warpgroup_mma_wait(0)
            yield mbarrier.arrive(b.v_empty[stage])
            used += 1
        yield mbarrier.arrive(b.q_empty[group])
        yield from store(z, O)


def consumer_next_first(b, z, group, turns=False):
    """Rungs "next scores first" and, with turns, "groups take turns".

    S of the next tile is started first, then O += P V of the tile before. The softmax of the next tile follows while
    the tensor cores still work on the latter.
    """
    used = 0
    for i in range(z.query_tiles):
        yield mbarrier.wait(b.q_ready[group], i & 1)
        stage = used % z.stages
        yield mbarrier.wait(b.k_ready[stage], used // z.stages & 1)
        S = yield scores(z, b.q_smem[group], i, b.k_smem[stage], used)
        yield warpgroup_mma_wait(0)
        yield mbarrier.arrive(b.k_empty[stage])
        yield from softmax(z, S, used)
        for _ in range(1, z.key_tiles):
            stage, next_stage = used % z.stages, (used + 1) % z.stages
            yield mbarrier.wait(b.k_ready[next_stage], (used + 1) // z.stages & 1)
            if turns:
                yield mbarrier.wait(b.turn[group], (used - i) & 1 ^ (1 - group))  # the first turn is group 0's
            S = yield scores(z, b.q_smem[group], i, b.k_smem[next_stage], used + 1)
            yield mbarrier.wait(b.v_ready[stage], used // z.stages & 1)
            O = [(yield values(z, b.v_smem[stage], used))]
            if turns:
                yield mbarrier.arrive(b.turn[1 - group])
            yield warpgroup_mma_wait(1)  # until only the last product is under way
            yield mbarrier.arrive(b.k_empty[next_stage])
            yield from softmax(z, S, used + 1)
            yield warpgroup_mma_wait(0)
            yield mbarrier.arrive(b.v_empty[stage])
            yield rescale(z, O, used + 1)
            used += 1
        stage = used % z.stages
        yield mbarrier.wait(b.v_ready[stage], used // z.stages & 1)
        O = [(yield values(z, b.v_smem[stage], used))]
        yield warpgroup_mma_wait(0)
        yield mbarrier.arrive(b.v_empty[stage])
        used += 1
        yield mbarrier.arrive(b.q_empty[group])
        yield from store(z, O)


def store(z, O):
    """O / l, and its copy to device memory."""
    yield rescale(z, O, "the end")
    yield tma.async_copy_shared_to_global(z.query_bytes)


def simulate(
    rung, head_dim=128, block_k=128, stages=2, key_tiles=32, *, query_tiles=1, consumers=2, programs=1, rates=H100
) -> Run:
    """Thread blocks of a rung that share an SM, from the first copy to the last store.

    consumers: of the rungs after the first. query_tiles: that a block computes one after the other, each of
    consumers * 64 rows. programs: how many blocks. Raises ValueError for a rung that is none.
    """
    if rung not in RUNGS:
        raise ValueError(f"{rung!r} is none of the rungs {', '.join(map(repr, RUNGS))}")
    if rung == "groups take turns" and consumers != 2:
        raise ValueError(f"two groups take turns, not {consumers}")
    sizes = Sizes(head_dim, block_k, stages, key_tiles, query_tiles, 1 if rung == "one group" else consumers)
    sm, jobs = SM(rates), {}
    for program in range(programs):
        of = f" of program {program}" if programs > 1 else ""
        jobs |= {f"{name}{of}": job for name, job in block(sm, rung, sizes).items()}
    return sm.run(jobs)


def block(sm, rung, z):
    """{name: job} of one thread block, and what they share allocated on the SM."""
    n, stages = z.consumers, z.stages
    b = Shared(
        sm.allocate_shared_memory("Q", n, z.query_bytes),
        sm.allocate_shared_memory("K", stages, z.key_bytes, readers=n),
        sm.allocate_shared_memory("V", stages, z.key_bytes, readers=n),
        sm.barriers("q_ready", n, 1), sm.barriers("q_empty", n, 1), sm.barriers("k_ready", stages, 1),
        sm.barriers("k_empty", stages, n), sm.barriers("v_ready", stages, 1), sm.barriers("v_empty", stages, n),
        sm.barriers("turn", 2, 1),
    )  # fmt: skip
    if rung == "one group":
        return {"group": one_group(b, z)}
    sm.allocate_shared_memory("O", n, z.query_bytes)  # the next query tile is there before this one is stored
    if rung == "a warp that fetches":
        groups = {f"consumer {w}": consumer(b, z, w) for w in range(n)}
    else:
        groups = {f"consumer {w}": consumer_next_first(b, z, w, rung == "groups take turns") for w in range(n)}
    return {"producer": producer(b, z)} | groups


@dataclass(frozen=True)
class Prediction:
    """cycles: of all blocks, which start together. cycles_per_key_tile: in the steady state, for the rows of all.

    tensor_share: the part of these cycles in which the tensor cores work, and tflops what it is worth on the H100 at
    its boost clock, which a GPU at its power limit does not keep.
    """

    cycles: float
    cycles_per_key_tile: float
    tensor_share: float
    tflops: float


@lru_cache
def predict(rung, head_dim=128, block_k=128, stages=2, key_tiles=32, **others):
    """The Prediction of a rung from counts alone; arguments as of `simulate`, with two key tiles or more."""
    run, half = (simulate(rung, head_dim, block_k, stages, n, **others) for n in (key_tiles, key_tiles // 2))
    per_tile = (run.cycles - half.cycles) / (key_tiles - key_tiles // 2) / others.get("query_tiles", 1)
    share = run.share("tensor")
    return Prediction(run.cycles, per_tile, share, share * GPUS["H100"].fp16_tensor_tflops)
