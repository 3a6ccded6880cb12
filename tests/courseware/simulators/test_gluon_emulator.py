"""The Gluon emulator on small programs, in several orders of events. The Hopper kernels' own tests use it, too."""

import pytest
import torch

from courseware.simulators import gluon_emulator
from courseware.simulators.gluon_emulator import GluonError, TensorDescriptor, gl, gluon, mbarrier, tma

TILE = torch.ones(2, 4)


def use(desc, smem, ready, done):
    assert (smem.index(0).load(None) + 1 == 2).all()


# What a partition can do with a tile in global memory, a buffer, and the barriers of the copy and of others.
DO = {
    "expect": lambda desc, smem, ready, done: mbarrier.expect(ready.index(0), desc.block_type.nbytes),
    "copy": lambda desc, smem, ready, done: tma.async_copy_global_to_shared(
        desc, [0, 0], ready.index(0), smem.index(0)
    ),
    "wait for copy": lambda desc, smem, ready, done: mbarrier.wait(ready.index(0), 0),
    "load": lambda desc, smem, ready, done: smem.index(0).load(None),
    "use": use,
    "start product": lambda *_: gluon_emulator.warpgroup_mma(TILE, TILE.T, None, use_acc=False, is_async=True),
    "multiply": lambda desc, smem, ready, done: gluon_emulator.warpgroup_mma(
        TILE, smem.index(0).permute((1, 0)), None, use_acc=False, is_async=True
    ),
    "arrive": lambda desc, smem, ready, done: mbarrier.arrive(done.index(0)),
    "arrive twice": lambda desc, smem, ready, done: mbarrier.arrive(done.index(0), count=2),
    "wait": lambda desc, smem, ready, done: mbarrier.wait(done.index(0), 0),
    "wait in vain": lambda desc, smem, ready, done: mbarrier.wait(done.index(1), 0),
    "store": lambda desc, smem, ready, done: smem.index(0).store(TILE),
    "fence": lambda *_: gluon_emulator.fence_async_shared(),
    "send": lambda desc, smem, ready, done: tma.async_copy_shared_to_global(desc, [0, 0], smem.index(0)),
    "wait for sending": lambda *_: tma.store_wait(0),
}
FILL, OVERWRITE = ("fill", "expect", "copy"), ("overwrite", "wait", "store")
# The partitions, each a name and what it does, and what is found.
PROGRAMS = {
    "right": ([FILL, ("consume", "wait for copy", "use", "arrive"), OVERWRITE], ""),
    "right, because a fence waits for loads": (
        [FILL, ("consume", "wait for copy", "load", "fence", "arrive"), OVERWRITE], "",
    ),
    "a product that nobody waits for": (
        [("multiply", "start product")], "multiply 0 ends before a product or copy of its own has",
    ),
    "stored while another partition loads": (
        [FILL, ("consume", "wait for copy", "load", "arrive", "wait in vain"), OVERWRITE],
        "overwrite 2 stores to smem[0], which consume 1 is still loading from",
    ),
    "stored over what a product reads": (
        [FILL, ("multiply", "wait for copy", "multiply", "store")],
        "multiply 1 stores to smem[0], which a product of multiply 1 still reads",
    ),
    "copied twice": (
        [("fill", "expect", "copy", "expect", "copy")],
        "fill 0 starts a copy to smem[0], whose last tile nobody has waited for",
    ),
    "too many arrivals": (
        [("arrive", "arrive twice")], "arrive 0 arrives at done[0] once more than the 1 times it was made for",
    ),
    "a fence of another partition": (
        [("send", "store", "wait", "send", "wait for sending"), ("fence", "fence", "arrive")],
        "the copy engine reads smem[0] that was stored without fence_async_shared after it",
    ),
    "nobody arrives": (
        [OVERWRITE], "deadlock, everybody waits: overwrite 0 for phase 0 of done[0], which lacks 1 of 1 arrivals",
    ),
    "nobody else is there": (None, "deadlock: the kernel waits for phase 0 of ready[0], and nobody else is there"),
}  # fmt: skip


def partition(name, *operations):
    def run(*shared):
        for operation in operations:
            DO[operation](*shared)

    run.__name__ = name
    return run


@gluon.jit
def program(desc, partitions):
    smem = gl.allocate_shared_memory(torch.float32, [2, 2, 4], None)
    ready, done = (gl.allocate_shared_memory(gl.int64, [2], mbarrier.MBarrierLayout()) for _ in range(2))
    for barrier in (*ready.parts, *done.parts):
        mbarrier.init(barrier, count=1)
    if partitions is None:
        mbarrier.wait(ready.index(0), 0)
    gl.warp_specialize([(partition(*of), (desc, smem, ready, done)) for of in partitions], None, None)


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
