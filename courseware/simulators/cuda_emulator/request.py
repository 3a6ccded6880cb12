"""What one request of a warp costs: sectors of device memory, and passes over the banks of shared memory.

A request is one instruction of one warp that accesses memory. `addresses` has 32 of them, one a lane, in bytes: where
the lane's element begins, or None for a lane that is off. element_bytes is 4, 8 or 16 and divides every address, or the
GPU refuses the request.

The runner counts by these rules. The tests compare them with what an H200's counters say.
"""

from collections import defaultdict

LANES, BANKS, WORD_BYTES, SECTOR_BYTES = 32, 32, 4, 32


def sectors(addresses, element_bytes):
    """The sectors of 32 bytes that a request touches in device memory: a set of their numbers.

    >>> len(sectors([4 * lane for lane in range(32)], 4)), len(sectors([512 * lane for lane in range(32)], 4))
    (4, 32)
    """
    _check(addresses, element_bytes)
    # An element lies in one sector, because element_bytes divides its address.
    return {address // SECTOR_BYTES for address in addresses if address is not None}


def groups(addresses, element_bytes, access="load"):
    """The lanes that shared memory serves together when a warp loads, or stores: a list of ranges.

    A pass hands out at most 32 words of 4 bytes. So it serves all lanes if each loads 4 bytes, the two halves of the
    warp one after the other if 8, its four quarters if 16. With 8 or 16 bytes, twice as many lanes are served together
    if each lane loads from the same address as its neighbour, lane ^ 1, or each from the same as lane ^ 2. (NVIDIA
    developer forum, "Unexpected shared memory bank conflict", for compute capability 7.0 and later.)

    >>> groups([16 * lane for lane in range(32)], 16)
    [range(0, 8), range(8, 16), range(16, 24), range(24, 32)]
    """
    _check(addresses, element_bytes)
    size = LANES * WORD_BYTES // element_bytes
    if access == "load" and size < LANES and any(_in_pairs(addresses, apart) for apart in (1, 2)):
        size *= 2
    return [range(first, first + size) for first in range(0, LANES, size)]


def passes(addresses, element_bytes, access="load"):
    """How shared memory serves a warp's load, or its "store", pass by pass: a list of {bank: lanes}, group by group.

    In a pass, each of the 32 banks delivers at most one word of 4 bytes, to all lanes of the group that want it. Word w
    lies in bank w % 32. So a group takes as many passes as one bank has different words to deliver; a group whose lanes
    are all off takes none.

    >>> len(passes([4 * lane for lane in range(32)], 4)), len(passes([128 * lane for lane in range(32)], 4))
    (1, 32)
    """
    served = []
    for lanes in groups(addresses, element_bytes, access):
        words = defaultdict(lambda: defaultdict(list))  # bank -> word -> the lanes that want it
        for lane in lanes:
            if addresses[lane] is None:
                continue
            first = addresses[lane] // WORD_BYTES
            for word in range(first, first + element_bytes // WORD_BYTES):
                words[word % BANKS][word].append(lane)
        for number in range(max(map(len, words.values()), default=0)):
            wanted = {bank: list(of_bank.values()) for bank, of_bank in words.items()}
            served.append({bank: lanes[number] for bank, lanes in wanted.items() if number < len(lanes)})
    return served


def conflicts(addresses, element_bytes, access="load"):
    """The passes beyond one for each group of lanes: those that are due to several words in one bank."""
    taken = groups(addresses, element_bytes, access)
    least = sum(any(addresses[lane] is not None for lane in lanes) for lanes in taken)
    return len(passes(addresses, element_bytes, access)) - least


def _in_pairs(addresses, apart):
    """Whether no lane wants another address than lane ^ apart; a lane that is off wants none."""
    pairs = ((address, addresses[lane ^ apart]) for lane, address in enumerate(addresses))
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def _check(addresses, element_bytes):
    if element_bytes not in (4, 8, 16):
        raise ValueError(f"element_bytes is {element_bytes}; accepted: 4, 8 and 16")
    if len(addresses) != LANES:
        raise ValueError(f"a warp has {LANES} lanes, and there are {len(addresses)} addresses")
    for lane, address in enumerate(addresses):
        if address is not None and (address < 0 or address % element_bytes):
            raise ValueError(f"lane {lane} accesses {element_bytes} bytes at address {address}: not a multiple of that")
