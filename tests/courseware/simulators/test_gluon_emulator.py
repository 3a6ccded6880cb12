"""The Gluon emulator on small programs, in several orders of events. The Hopper kernels' own tests use it, too."""

import pytest
import torch

from courseware.simulators import gluon_emulator
from courseware.simulators.gluon_emulator import GluonError, TensorDescriptor, gl, gluon, mbarrier, tma

TILE = torch.ones(2, 4)


def fill(desc, smem, ready, done):
    mbarrier.expect(ready.index(0), desc.block_type.nbytes)
    tma.async_copy_global_to_shared(desc, [0, 0], ready.index(0), smem.index(0))


def fill_twice(*shared):
    fill(*shared)
    fill(*shared)


def load_and_hand_back(desc, smem, ready, done):
    mbarrier.wait(ready.index(0), 0)
    tile = smem.index(0).load(None)
    mbarrier.arrive(done.index(0))
    mbarrier.wait(done.index(1), 0)
    tile + 1


def load_use_and_hand_back(desc, smem, ready, done):
    mbarrier.wait(ready.index(0), 0)
    assert (smem.index(0).load(None) + 1 == 2).all()
    mbarrier.arrive(done.index(0))


def load_fence_and_hand_back(desc, smem, ready, done):
    mbarrier.wait(ready.index(0), 0)
    smem.index(0).load(None)
    fence(desc, smem, ready, done)


def start_a_product(*shared):
    gluon_emulator.warpgroup_mma(TILE, TILE.T, None, use_acc=False, is_async=True)


def store_over_a_product(desc, smem, ready, done):
    mbarrier.wait(ready.index(0), 0)
    gluon_emulator.warpgroup_mma(TILE, smem.index(0).permute((1, 0)), None, use_acc=False, is_async=True)
    smem.index(0).store(TILE)


def overwrite(desc, smem, ready, done):
    mbarrier.wait(done.index(0), 0)
    smem.index(0).store(TILE)


def arrive_twice(desc, smem, ready, done):
    mbarrier.arrive(done.index(0), count=2)


def store_and_send(desc, smem, ready, done):
    smem.index(0).store(TILE)
    mbarrier.wait(done.index(0), 0)
    tma.async_copy_shared_to_global(desc, [0, 0], smem.index(0))
    tma.store_wait(0)


def fence(desc, smem, ready, done):
    gluon_emulator.fence_async_shared()
    mbarrier.arrive(done.index(0))


# The partitions, and what is found.
PROGRAMS = {
    "right": ([fill, load_use_and_hand_back, overwrite], ""),
    "right, because a fence waits for loads": ([fill, load_fence_and_hand_back, overwrite], ""),
    "a product that nobody waits for": (
        [start_a_product], "start_a_product 0 ends before a product or copy of its own has",
    ),
    "stored while another partition loads": (
        [fill, load_and_hand_back, overwrite],
        "overwrite 2 stores to smem[0], which load_and_hand_back 1 is still loading from",
    ),
    "stored over what a product reads": (
        [fill, store_over_a_product],
        "store_over_a_product 1 stores to smem[0], which a product of store_over_a_product 1 still reads",
    ),
    "copied twice": ([fill_twice], "fill_twice 0 starts a copy to smem[0], whose last tile nobody has waited for"),
    "too many arrivals": (
        [arrive_twice], "arrive_twice 0 arrives at done[0] once more than the 1 times it was made for",
    ),
    "a fence of another partition": (
        [store_and_send, fence], "the copy engine reads smem[0] that was stored without fence_async_shared after it",
    ),
    "nobody arrives": (
        [overwrite], "deadlock, everybody waits: overwrite 0 for phase 0 of done[0], which lacks 1 of 1 arrivals",
    ),
    "nobody else is there": (None, "deadlock: the kernel waits for phase 0 of ready[0], and nobody else is there"),
}  # fmt: skip


@gluon.jit
def program(desc, partitions):
    smem = gl.allocate_shared_memory(torch.float32, [2, 2, 4], None)
    ready, done = (gl.allocate_shared_memory(gl.int64, [2], mbarrier.MBarrierLayout()) for _ in range(2))
    for barrier in (*ready.parts, *done.parts):
        mbarrier.init(barrier, count=1)
    if partitions is None:
        mbarrier.wait(ready.index(0), 0)
    gl.warp_specialize([(partition, (desc, smem, ready, done)) for partition in partitions], None, None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_wrong_is_found_in_every_order_of_events(name, monkeypatch):
    partitions, message = PROGRAMS[name]
    for seed in range(6):
        monkeypatch.setattr(gluon_emulator, "SEED", seed)
        found = ""
        try:
            program[(1,)](TensorDescriptor(torch.ones(2, 4), [2, 4], [4, 1], [2, 4], None), partitions)
        except GluonError as error:
            found = str(error)
        assert found == message


def test_the_copy_engine_takes_no_tensor_without_elements():
    with pytest.raises(GluonError, match=r"no tensor without elements: \(0, 4\)"):
        TensorDescriptor(torch.ones(0, 4), [0, 4], [4, 1], [2, 4], None)
