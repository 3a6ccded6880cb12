"""The rules for one request of a warp give what Nsight Compute counted on an H200."""

import pytest

from courseware.simulators.cuda_emulator.request import conflicts, groups, passes, sectors

# (bytes of an element, address of a lane, passes, conflicts): wavefronts of a warp's load from shared memory.
MEASURED = [
    (16, lambda lane: 0, 2, 0),
    (16, lambda lane: lane // 8 * 16, 2, 0),
    (16, lambda lane: lane // 2 * 16, 2, 0),
    (16, lambda lane: lane % 8 * 16, 4, 0),
    (16, lambda lane: lane * 16, 4, 0),
    (16, lambda lane: lane * 128, 32, 28),
    (16, lambda lane: lane % 2 * 128, 4, 2),
    (16, lambda lane: lane // 8 * 128, 4, 2),
    (16, lambda lane: lane // 16 * 128, 2, 0),
    (8, lambda lane: 0, 1, 0),
    (8, lambda lane: lane * 8, 2, 0),
    (8, lambda lane: lane % 16 * 8, 2, 0),
    (8, lambda lane: lane // 2 * 8, 1, 0),
    (8, lambda lane: lane * 128, 32, 30),
    (8, lambda lane: lane // 16 * 128, 2, 1),
    (8, lambda lane: lane * 16, 4, 2),
]


@pytest.mark.parametrize("element_bytes, address_of, n_passes, n_conflicts", MEASURED)
def test_passes_are_those_that_were_measured(element_bytes, address_of, n_passes, n_conflicts):
    addresses = [address_of(lane) for lane in range(32)]
    served = passes(addresses, element_bytes)
    assert (len(served), conflicts(addresses, element_bytes)) == (n_passes, n_conflicts)
    # Every lane gets each of its words once, and a bank delivers one word in a pass.
    words = [range(address // 4, (address + element_bytes) // 4) for address in addresses]
    expected = [(lane, word % 32) for lane, of_lane in enumerate(words) for word in of_lane]
    delivered = [(lane, bank) for of_banks in served for bank, lanes in of_banks.items() for lane in lanes]
    assert sorted(delivered) == sorted(expected)


def test_lanes_that_are_off_want_nothing_and_a_store_serves_no_pairs_together():
    assert [len(passes([0] * 32, 16, access)) for access in ("load", "store")] == [2, 4]
    assert passes([None] * 32, 16) == [] and sectors([None] * 32, 4) == set() and conflicts([None] * 32, 8) == 0
    first_quarter = [16 * lane if lane < 8 else None for lane in range(32)]
    assert len(passes(first_quarter, 16)) == 1 and conflicts(first_quarter, 16) == 0
    # A lane that is off has the same address as its neighbour as far as pairs are concerned.
    every_other = [128 * lane if lane % 2 else None for lane in range(32)]
    assert len(groups(every_other, 16)) == 2
    assert sectors([0, 28, *[None] * 30], 4) == {0}


@pytest.mark.parametrize(
    "addresses, element_bytes, said",
    [([0] * 32, 2, "accepted: 4, 8 and 16"), ([0] * 31, 4, "31 addresses"), ([2] * 32, 4, "lane 0")],
)
def test_what_no_gpu_does_is_refused(addresses, element_bytes, said):
    with pytest.raises(ValueError, match=said):
        passes(addresses, element_bytes)
