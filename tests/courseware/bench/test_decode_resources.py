"""The kernels of decoding compiled, without a GPU, for every generation: they fit, and only known ones spill."""

import dataclasses

import pytest
import torch

from course_lib.kernels.configs import select
from tests.courseware.bench.compiled import compiled
from tests.courseware.bench.test_resources import DIVISION_BYTES, PINNED, SHARED_BYTES
from tools.resources import Request

# With the pages, splits and numbers of queries that each dtype and head_dim is launched with, not in every combination.
# 4 rows are one token of the 4 heads that share keys, 64 rows as many as a tile has.
ONE_TOKEN = (
    ("float16", 64, None, 1), ("float16", 80, 64, 4), ("float16", 128, 16, 4), ("float32", 128, 64, 4),
    ("float32", 256, None, 1),
)  # fmt: skip
FULL_TILE = (("float16", 128, 256, 1), ("float16", 256, None, 4))
ON_SM_75 = (("float16", 64, None, 1), ("float16", 128, 16, 4), ("float16", 256, 64, 1), ("float32", 256, 256, 4))

# The compiled caches have 4096 keys; on sm_90, longer ones are read in tiles of their own.
LONG_CACHE = select(
    "decode", dtype=torch.float16, head_dim=128, causal=True, capability=(9, 0), n_k=2**15, by_descriptor=False
)


def requests(arch):
    cases = [(1, case) for case in (ON_SM_75 if arch == 75 else ONE_TOKEN)]
    cases += [(16, case) for case in FULL_TILE if arch != 75]
    found = [
        Request(d, arch, dtype, True, kernel="decode", n_new=n_new, page_size=page_size, num_splits=num_splits)
        for n_new, (dtype, d, page_size, num_splits) in cases
    ]
    if arch == 90:
        tiled = [request for request in found if (request.dtype, request.head_dim) == ("float16", 128)]
        found += [dataclasses.replace(request, config=LONG_CACHE) for request in tiled]
    return [*found, *(Request(d, arch, kernel="merge", num_splits=splits) for d, splits in ((128, 32), (256, 512)))]


ARCHS = (75, 80, 90, 100)
EVERY = tuple(request for arch in ARCHS for request in requests(arch))

# (arch, dtype, head_dim, n_new): bytes of stack, which are register spills. In fp32 with 256 columns, even the smallest
# tiles spill. On sm_90, the tiles of 128 columns are the fastest for few rows; full ones spill.
KNOWN_SPILLS = {
    (80, "float32", 256, 1): 184,
    (90, "float32", 256, 1): 144, (90, "float16", 128, 16): 72,
    (100, "float32", 256, 1): 320,
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_launched_fits_and_only_known_configurations_spill(arch):
    spilling = {}
    found = compiled(requests(arch))
    for request in requests(arch):
        used = found[request]
        assert used.shared_bytes <= SHARED_BYTES[arch], (request, used)
        assert used.registers <= 255 and used.config[0] >= 16, (request, used)
        assert used.tensor_cores == (arch != 75 and request.kernel == "decode"), (request, used)
        if request.kernel == "merge":
            assert used.config[0] == request.num_splits and used.stack_bytes == 0, (request, used)
        elif used.stack_bytes > DIVISION_BYTES:
            spilling[arch, request.dtype, request.head_dim, request.n_new] = used.stack_bytes
    known = {key: spilled_bytes for key, spilled_bytes in KNOWN_SPILLS.items() if key[0] == arch}
    assert not PINNED or spilling == known
