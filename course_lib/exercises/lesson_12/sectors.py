"""How many sectors of memory one request of a warp touches."""


def sectors(addresses, element_bytes):
    """How many sectors of 32 bytes one request of a warp touches, and how few could hold what it asks for.

    addresses: where the element of each of the 32 lanes begins, in bytes; None for a lane that is off. Lanes may ask for
        the same element. element_bytes: 4, 8 or 16, for float, float2 or float4. Addresses are multiples of it.
    Returns (touched, enough): the sectors that hold a byte of these elements, each counted once, and the least number
        of sectors into which the elements would fit, each of them once, if they lay side by side.

    >>> sectors([4 * lane for lane in range(32)], 4)
    (4, 4)
    >>> sectors([512 * lane for lane in range(32)], 4)
    (32, 4)
    """
    elements = {address for address in addresses if address is not None}
    touched = {address // 32 for address in elements}
    return len(touched), -(-len(elements) * element_bytes // 32)
