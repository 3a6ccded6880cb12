"""How often the banks of shared memory have to deliver for one load of a warp."""

from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, agrees, case_of, exactly
from courseware.exercises.common.explanations import explain
from courseware.exercises.lesson_12.sectors import ADDRESSES, LANES, any_lanes, listed
from courseware.simulators.cuda_emulator import request


def bank_conflicts(addresses):
    """How many passes over the banks of shared memory one load of a warp takes. Without a conflict, it takes one.

    Shared memory has 32 banks. Words of 4 bytes are dealt to them in turn: the word at address 0 lies in bank 0, the
    one at address 4 in bank 1, and the one at address 128 in bank 0 again. In a pass, each bank delivers one word, to
    every lane that wants this word.

    addresses: of the word that each lane loads, in bytes: a list of 32, with None for a lane that is off.
    Returns how many passes it takes, 0 if all lanes are off.

    >>> bank_conflicts([4 * lane for lane in range(32)])
    1
    >>> bank_conflicts([8 * lane for lane in range(32)])
    2
    >>> bank_conflicts([64] * 32)
    1
    """
    words = {address // 4 for address in addresses if address is not None}
    words_in_bank = [0] * 32
    for word in words:
        words_in_bank[word % 32] += 1
    return max(words_in_bank)


def delivered_pass_by_pass(addresses, **_):
    return exactly("the number of passes", len(request.passes(addresses, 4)), 0, "pass")


def busiest_bank(_, addresses, **names):
    banks = [sorted(word for word in {*addresses} - {None} if word // 4 % 32 == bank) for bank in range(32)]
    words = max(banks, key=len)
    at = f" to deliver, at {listed(words)}" if words else ""
    count = f"{len(words)} different word{'s' * (len(words) != 1)}"
    return f"the bank with most to do is bank {banks.index(words)}, which has {count}{at}"


case = case_of("step sharing active start", sharing=1, active=LANES, start=0)
WORDS = st.integers(0, 99).map(lambda i: 4 * i)
STEPS = st.sampled_from([0, 4, 8, 12, 32, 64, 128, 132, 256, 512])
check = Checks(f"{ADDRESSES}\nbank_conflicts(addresses)", explain(agrees(delivered_pass_by_pass), busiest_bank))

check("consecutive words", [case(4), case(4, start=64), case(-4, start=124)])
check("words further apart", [case(8), case(128), case(132), case(12), case(32), case(64), case(512, start=20)])
check("lanes that want the same word", [case(4, 32), case(4, 4), case(64, 4), case(128, 8)])
check(
    "lanes that are off",
    [
        *(case(4, active=5), case(128, active=3, start=8), case(128, active=3, start=128), case(4, active=0)),
        st.builds(case, STEPS, st.integers(1, LANES), st.integers(0, LANES), WORDS),
    ],
)
check(
    "any addresses",
    [
        {"addresses": [0, 4, 132, 4, *[None] * 28]},
        {"addresses": [0, 128, 256, 4, *[None] * 28]},
        {"addresses": [4 * (lane * lane % 97) if lane % 5 else None for lane in range(LANES)]},
        st.fixed_dictionaries({"addresses": any_lanes(WORDS)}),
    ],
    call="bank_conflicts(addresses)",
)

EXERCISE = Exercise(__file__, bank_conflicts, check, points=2, minutes=8, difficulty="medium")
