"""The rules for one request of a warp give what Nsight Compute counted on an H200, and what the runner counts."""

import numpy as np
import pytest

from courseware.simulators.cuda_emulator import runner
from courseware.simulators.cuda_emulator.request import conflicts, groups, passes, sectors

# (bytes of an element, address of a lane, passes, conflicts): wavefronts of a warp's load from shared memory.
MEASURED = [
    (16, lambda lane: 0, 2, 0),
    (16, lambda lane: lane // 16 * 16, 2, 0),
    (16, lambda lane: lane // 8 * 16, 2, 0),
    (16, lambda lane: lane // 4 * 16, 2, 0),
    (16, lambda lane: lane // 2 * 16, 2, 0),
    (16, lambda lane: lane % 16 * 16, 4, 0),
    (16, lambda lane: lane % 8 * 16, 4, 0),
    (16, lambda lane: lane * 16, 4, 0),
    (16, lambda lane: lane * 128, 32, 28),
    (16, lambda lane: lane % 2 * 128, 4, 2),
    (16, lambda lane: lane // 8 * 128, 4, 2),
    (16, lambda lane: lane // 16 * 128, 2, 0),
    (8, lambda lane: 0, 1, 0),
    (8, lambda lane: lane * 8, 2, 0),
    (8, lambda lane: lane % 16 * 8, 2, 0),
    (8, lambda lane: lane // 16 * 8, 1, 0),
    (8, lambda lane: lane // 2 * 8, 1, 0),
    (8, lambda lane: lane * 128, 32, 30),
    (8, lambda lane: lane // 16 * 128, 2, 1),
    (8, lambda lane: lane * 16, 4, 2),
]


@pytest.mark.parametrize("element_bytes, address_of, n_passes, n_conflicts", MEASURED)
def test_passes_are_those_that_were_measured(element_bytes, address_of, n_passes, n_conflicts):
    addresses = [address_of(lane) for lane in range(32)]
    assert len(passes(addresses, element_bytes)) == n_passes
    assert conflicts(addresses, element_bytes) == n_conflicts


def test_every_lane_gets_each_of_its_words_once_and_a_bank_delivers_one_word_a_pass():
    for element_bytes, address_of, *_ in MEASURED:
        addresses = [address_of(lane) for lane in range(32)]
        served = [
            (lane, bank)
            for of_banks in passes(addresses, element_bytes)
            for bank, lanes in of_banks.items()
            for lane in lanes
        ]
        words = [range(address // 4, (address + element_bytes) // 4) for address in addresses]
        expected = [(lane, word % 32) for lane, of_lane in enumerate(words) for word in of_lane]
        assert sorted(served) == sorted(expected)


@pytest.mark.parametrize("words, expected", [(1, 1), (2, 2), (3, 1), (8, 8), (16, 16), (32, 32), (33, 1), (48, 16)])
def test_4_byte_words_that_lie_apart_share_banks_by_their_common_divisors(words, expected):
    assert len(passes([4 * words * lane for lane in range(32)], 4)) == expected


def test_lanes_that_are_off_want_nothing():
    assert passes([None] * 32, 16) == [] and sectors([None] * 32, 4) == set() and conflicts([None] * 32, 8) == 0
    first_quarter = [16 * lane if lane < 8 else None for lane in range(32)]
    assert len(passes(first_quarter, 16)) == 1 and conflicts(first_quarter, 16) == 0
    # A lane that is off has the same address as its neighbour as far as pairs are concerned.
    every_other = [128 * lane if lane % 2 else None for lane in range(32)]
    assert len(groups(every_other, 16)) == 2
    assert sectors([0, 28, *[None] * 30], 4) == {0}


def test_sectors_are_counted_once():
    assert sectors([0] * 32, 16) == {0}
    assert len(sectors([4 * lane + 4 for lane in range(32)], 4)) == 5
    assert len(sectors([16 * lane for lane in range(32)], 16)) == 16


@pytest.mark.parametrize(
    "addresses, element_bytes, said",
    [
        ([0] * 32, 2, "accepted: 4, 8 and 16"),
        ([0] * 31, 4, "31 addresses"),
        ([2] * 32, 4, "lane 0"),
        ([-4] * 32, 4, "lane 0"),
    ],
)
def test_what_no_gpu_does_is_refused(addresses, element_bytes, said):
    with pytest.raises(ValueError, match=said):
        passes(addresses, element_bytes)


GATHER = r"""extern "C" __global__ void gather(const VECTOR* x, const int* place, VECTOR* out) {
  __shared__ VECTOR tile[256];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = make_VECTOR;
  __syncthreads();
  out[threadIdx.x] = tile[place[threadIdx.x]];
  out[threadIdx.x + 32] = x[place[threadIdx.x]];
}"""
KINDS = {4: ("float", "0.0f"), 8: ("float2", "make_float2(0, 0)"), 16: ("float4", "make_float4(0, 0, 0, 0)")}


@pytest.mark.parametrize("element_bytes", KINDS)
def test_the_runner_counts_by_the_same_rules(element_bytes):
    vector, zero = KINDS[element_bytes]
    source = GATHER.replace("make_VECTOR", zero).replace("VECTOR", vector)
    rng = np.random.default_rng(0)
    lane = np.arange(32)
    patterns = [lane, lane // 8 * 8, lane % 2 * 64, lane // 2 % 8 * 9, lane % 8 * 9, lane ^ 1, 8 * lane]
    patterns += [rng.integers(0, most, 32) for most in (4, 32, 256)]
    patterns += [np.repeat(rng.integers(0, 256, 16), 2), np.tile(rng.integers(0, 256, (8, 2)), (1, 2)).ravel()]
    for places in patterns:
        width = element_bytes // 4
        x, out = np.zeros((256, width), np.float32), np.zeros((64, width), np.float32)
        arguments = {"x": x, "place": places.astype(np.int32), "out": out}
        report = runner.launch(source, "gather", grid=1, block=32, arguments=arguments)
        addresses = [element_bytes * int(place) for place in places]
        loads = report.shared.loads
        assert report.findings == [] and loads.requests == 1
        assert loads.passes == len(passes(addresses, element_bytes)), places
        assert loads.conflicts == conflicts(addresses, element_bytes), places
        assert report.tensors["x"].loads.sectors == len(sectors(addresses, element_bytes)), places
