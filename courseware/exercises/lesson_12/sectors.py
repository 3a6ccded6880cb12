"""How many sectors of memory one request of a warp touches."""

from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, agrees, exactly, show
from courseware.exercises.common.explanations import explain

LANES = 32


def sectors(addresses, element_bytes):
    """How many sectors of 32 bytes one request of a warp touches, and how few could hold what it asks for.

    addresses: where each lane's element begins, in bytes: a list of 32, with None for a lane that is off. Lanes may ask
        for the same element. element_bytes: 4, 8 or 16, for float, float2 or float4. Addresses are multiples of it.
    Returns (touched, enough): how many sectors hold a byte of these elements, each sector counted once; and into how
        many the elements would fit, each element counted once, if they lay side by side. (0, 0) if all lanes are off.

    >>> sectors([4 * lane for lane in range(32)], 4)
    (4, 4)
    >>> sectors([512 * lane for lane in range(32)], 4)
    (32, 4)
    """
    elements = {address for address in addresses if address is not None}
    touched = {address // 32 for address in elements}
    return len(touched), -(-len(elements) * element_bytes // 32)


def counted_byte_by_byte(addresses, element_bytes, **_):
    asked = {byte for address in addresses if address is not None for byte in range(address, address + element_bytes)}
    touched, enough = len({byte // 32 for byte in asked}), len(range(0, len(asked), 32))
    return exactly("touched", touched, 0) + exactly("enough", enough, 0)


def asked_for(_, addresses, element_bytes, **names):
    elements = {*addresses} - {None}
    numbers = sorted({address // 32 for address in elements})
    lie = f", in the sectors {listed(numbers)}" if elements else ""
    count = f"{len(elements)} different element{'s' * (len(elements) != 1)}"
    return f"asked for: {count}, {len(elements) * element_bytes} bytes in all{lie}"


def listed(numbers):
    return f"{show(numbers[:4])}{', ...' * (len(numbers) > 4)}"


def any_lanes(addresses):
    return st.lists(st.none() | addresses, min_size=LANES, max_size=LANES)


# sharing: so many neighbouring lanes ask for the same element. active: the lanes before this one are on.
ADDRESSES = "addresses = [start + step * (lane // sharing) if lane < active else None for lane in range(32)]"


def case(element_bytes, start=0, step=None, sharing=1, active=LANES):
    step = element_bytes if step is None else step
    return {"element_bytes": element_bytes, "start": start, "step": step, "sharing": sharing, "active": active}


@st.composite
def patterns(draw):
    size = draw(st.sampled_from([4, 8, 16]))
    start, step = (size * draw(st.integers(0, 9)) for _ in range(2))
    return case(size, start, step, draw(st.integers(1, LANES)), draw(st.integers(0, LANES)))


def any_addresses(size):
    addresses = any_lanes(st.integers(0, 40).map(lambda i: i * size))
    return st.fixed_dictionaries({"addresses": addresses, "element_bytes": st.just(size)})


check = Checks(f"{ADDRESSES}\nsectors(addresses, element_bytes)", explain(agrees(counted_byte_by_byte), asked_for))

check("consecutive elements of 4, 8 and 16 bytes", [case(4), case(8), case(16), case(4, 64)])
check("consecutive elements, of which the first does not begin a sector", [case(4, 4), case(8, 24), case(16, 16)])
check("gaps between the elements", [case(4, step=8), case(4, step=512), case(8, step=24), case(4, 28, 32)])
check("lanes that are off", [case(4, active=9), case(8, 64, active=3), case(4, active=1), case(4, active=0)])
check("lanes that ask for the same element", [case(4, sharing=32), case(16, 64, sharing=8), patterns()])
check(
    "any addresses",
    [
        {"addresses": [8 * (lane * 7 % 41) if lane % 3 else None for lane in range(LANES)], "element_bytes": 8},
        st.sampled_from([4, 8, 16]).flatmap(any_addresses),
    ],
    call="sectors(addresses, element_bytes)",
)

EXERCISE = Exercise(__file__, sectors, check, points=2, minutes=7, difficulty="easy")
