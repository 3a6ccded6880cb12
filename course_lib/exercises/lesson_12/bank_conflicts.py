"""How often the banks of shared memory have to deliver for one load of a warp."""


def bank_conflicts(addresses):
    """The number of passes over the banks of shared memory that one load of a warp takes; without a conflict, it is 1.

    Shared memory has 32 banks. Words of 4 bytes are dealt to them in turn: the word at address 0 lies in bank 0, the one
    at address 4 in bank 1, the one at address 128 in bank 0 again. In a pass, each bank delivers one word, to as many
    lanes as want that word.

    addresses: of the word that each of the 32 lanes loads, in bytes; None for a lane that is off.
    Returns a whole number; 0 if every lane is off.

    >>> bank_conflicts([4 * lane for lane in range(32)])
    1
    >>> bank_conflicts([8 * lane for lane in range(32)])
    2
    >>> bank_conflicts([64] * 32)
    1
    """
    words = {address // 4 for address in addresses if address is not None}
    words_of_bank = [0] * 32
    for word in words:
        words_of_bank[word % 32] += 1
    return max(words_of_bank)
