"""Lesson 06, tiled attention: the exercises' answers, hints, properties and plausible wrong answers.

The loop is FlashAttention-2 (Dao, 2023), Alg. 1; the second loop order and its bytes are FlashAttention (Dao et
al., 2022), Alg. 1. `tiled_attention` is graded on a memory machine that also notices who looks past it.
"""

import sys

import numpy as np

from course_lib import reference, traffic
from course_lib.grading.calling import AnswerError
from course_lib.grading.checking import arrays, numbers
from course_lib.grading.diagnosis import compare, exact_and_plain, show
from course_lib.grading.exercise import (
    Evidence,
    Exercise,
    Finding,
    Part,
    Property,
    Variant,
    WrongAnswer,
    caught_by,
)
from course_lib.machine import HBMArray, Machine, Tile
from course_lib.reference import example
from course_lib.reference.tiled import tiled_attention_on_machine

LESSON = "06"
TITLE = "Tiled attention"

SHARED_MISTAKES = {
    "endless": "Which line changes what the loop waits for? A `for` over range(0, n, block) ends by itself.",
    "error": "Run the call above in a cell of its own and look at the line that is shown.",
    "format": "Compare the docstring's Returns with your return statement.",
}
SHARED_HINTS = {": timeout": "endless", ": exception": "error", ": none": "format", ": type": "format"}


def only(kind, text, returned="", expected=""):
    """Evidence of one finding that is about no output in particular."""
    return Evidence((Finding("", kind, text),), returned, expected)


def refuses(call, cases, name):
    """Property: the call raises ValueError."""

    def test(answer, **inputs):
        try:
            returned = answer(*inputs.values())
        except AnswerError as error:
            if error.finding.text.startswith("the answer raised ValueError"):
                return None
            return Evidence((error.finding,), expected="a ValueError")
        return only("accepted", "nothing was raised", show(returned), "a ValueError")

    return Property(name, call, test, cases, hints={"": "refuse", ": exception": "refuse"})


def draw_counts(**ranges):
    """Strategy: whole numbers, each drawn from a range (first, last) or from a list of choices."""

    def draw():
        from hypothesis import strategies as st

        def one(choices):
            return st.integers(*choices) if isinstance(choices, tuple) else st.sampled_from(choices)

        drawn = st.tuples(*map(one, ranges.values()))
        return drawn.map(lambda counts: dict(zip(ranges, counts, strict=True)))

    return draw


def choose_block_sizes(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    """The largest tiles that fit: (block_q, block_k), by the papers' budget of four tiles.

    sram_bytes: what there is. d: head_dim. dtype_bytes: of one element, 2 for float16. multiple_of: both sizes
        are multiples of it, at least one time.
    The tiles of Q, K, V and S must fit together: dtype_bytes * (block_q * d + 2 * block_k * d + block_q *
        block_k) <= sram_bytes. Accumulator, statistics and temporaries are not in this budget.
    Returns the pair with the largest product block_q * block_k; of several, that with the largest block_q.
    Raises ValueError if not even multiple_of x multiple_of fits.

    >>> choose_block_sizes(100_000, 64)
    (272, 80)
    """
    budget_elems = sram_bytes // dtype_bytes
    best = None
    for block_q in range(multiple_of, budget_elems + 1, multiple_of):
        fits = (budget_elems - block_q * d) // (2 * d + block_q)
        block_k = fits // multiple_of * multiple_of
        if block_k < multiple_of:
            break  # a larger block_q leaves even less
        if best is None or block_q * block_k >= best[0] * best[1]:
            best = block_q, block_k
    if best is None:
        smallest_bytes = dtype_bytes * (3 * multiple_of * d + multiple_of**2)
        raise ValueError(f"sram_bytes is {sram_bytes}; the smallest tiles need {smallest_bytes}")
    return best


def right_blocks(sram_bytes, d, dtype_bytes, multiple_of):
    """The same by trying every pair, without the formula for the larger block_k."""
    pairs = []
    for block_q in range(multiple_of, sram_bytes + 1, multiple_of):
        for block_k in range(multiple_of, sram_bytes + 1, multiple_of):
            if four_tiles_bytes(block_q, block_k, d, dtype_bytes) > sram_bytes:
                break
            pairs.append((block_q, block_k))
    return max(pairs, key=lambda pair: (pair[0] * pair[1], pair[0]))


def four_tiles_bytes(block_q, block_k, d, dtype_bytes):
    return dtype_bytes * (block_q * d + 2 * block_k * d + block_q * block_k)


def blocks_test(wrong):
    """A test: the answer returns two counts of at least 1, and wrong(block_q, block_k, **inputs) finds nothing."""

    def test(answer, **inputs):
        returned = answer(*inputs.values())
        pair = isinstance(returned, tuple) and len(returned) == 2
        if not pair or not all(isinstance(size, int | np.integer) and size >= 1 for size in returned):
            text = "the answer did not return two whole numbers of at least 1"
            return only("type", text, show(returned), "(block_q, block_k)")
        finding = wrong(*map(int, returned), **inputs)
        return Evidence((finding,), show(returned), show(right_blocks(**inputs))) if finding else None

    return test


def too_large(block_q, block_k, sram_bytes, d, dtype_bytes, multiple_of):
    needed_bytes = four_tiles_bytes(block_q, block_k, d, dtype_bytes)
    if needed_bytes <= sram_bytes:
        return None
    text = f"tiles of {block_q} x {block_k} need {needed_bytes:,} bytes, there are {sram_bytes:,}"
    without_scores = needed_bytes - dtype_bytes * block_q * block_k
    without_v = needed_bytes - dtype_bytes * block_k * d
    for kind, bytes_counted, what in (
        ("one of K and V", without_v, "it fits if one tile stands for both K and V"),
        ("elements", needed_bytes // dtype_bytes, "elements, not bytes, are few enough"),
        ("no scores", without_scores, "it fits if the tile of scores is left out"),
    ):
        if bytes_counted <= sram_bytes:
            return Finding("", kind, f"{text}: {what}")
    return Finding("", "too large", text)


def no_multiple(block_q, block_k, sram_bytes, d, dtype_bytes, multiple_of):
    if block_q % multiple_of == 0 == block_k % multiple_of:
        return None
    return Finding("", "multiple", f"{block_q} and {block_k} are not both multiples of {multiple_of}")


def too_small(block_q, block_k, **inputs):
    best_q, best_k = right_blocks(**inputs)
    if block_q * block_k >= best_q * best_k:
        return None
    text = f"{best_q} x {best_k} = {best_q * best_k} scores fit too, more than {block_q} x {block_k} = "
    kind = "square" if block_q == block_k else "smaller"
    return Finding("", kind, f"{text}{block_q * block_k}")


def wrong_tie(block_q, block_k, **inputs):
    best = right_blocks(**inputs)
    if (block_q, block_k) == best:
        return None
    text = f"{block_q} x {block_k} makes as many scores as {best[0]} x {best[1]}, with fewer queries to share a key"
    return Finding("", "tie", text)


BLOCKS_CALL = "choose_block_sizes(sram_bytes, d, dtype_bytes, multiple_of)"
BLOCKS_DRAW = draw_counts(sram_bytes=(800, 6000), d=(1, 12), dtype_bytes=[2, 4], multiple_of=[1, 2, 4])


def blocks_case(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    return {"sram_bytes": sram_bytes, "d": d, "dtype_bytes": dtype_bytes, "multiple_of": multiple_of}


CHOOSE = Exercise(
    id="06.choose_block_sizes",
    title="The largest tiles that fit",
    points=2,
    minutes=8,
    difficulty="easy",
    answer=choose_block_sizes,
    hints=(
        "Fix block_q. Which tiles have their size now, and what is left for one more row of K, of V and of S?",
        "One key costs 2 d elements for its rows of K and V, and block_q elements for its column of S. So "
        "block_k = (elements left) // (2 d + block_q), rounded down to a multiple.",
        "budget = sram_bytes // dtype_bytes. For block_q = multiple_of, 2 multiple_of, ...: block_k = (budget - "
        "block_q d) // (2 d + block_q) // multiple_of * multiple_of; stop when it is 0. Keep the pair if its "
        "product is at least the best so far. Raise ValueError if none was found.",
    ),
    reasoning="With block_q fixed the budget is linear in block_k, so the best block_k is a division. block_q runs "
    "upwards, and >= instead of > keeps the larger block_q of two equal products: that one reads K and V less "
    "often. The whole budget is counted in elements after one division by dtype_bytes, which is the step that is "
    "skipped when M is read as bytes.",
    properties=(
        Property(
            "the four tiles fit in sram_bytes",
            BLOCKS_CALL,
            blocks_test(too_large),
            (
                blocks_case(100_000, 64),
                blocks_case(100_000, 64, 4),
                blocks_case(8192, 32),
                blocks_case(2048, 16),
            ),
            BLOCKS_DRAW,
            {
                ": elements": "elements",
                ": one of K and V": "key_value",
                ": no scores": "scores",
                "": "too_large",
            },
        ),
        Property(
            "both sizes are multiples of multiple_of",
            BLOCKS_CALL,
            blocks_test(no_multiple),
            (blocks_case(100_000, 64), blocks_case(40_000, 48, 2, 32)),
            BLOCKS_DRAW,
            {"": "multiple"},
        ),
        Property(
            "no pair that fits makes more scores",
            BLOCKS_CALL,
            blocks_test(too_small),
            (blocks_case(100_000, 64), blocks_case(2048, 16), blocks_case(3072, 16, 4, 8)),
            BLOCKS_DRAW,
            {": square": "square", "": "smaller"},
        ),
        Property(
            "of equal products, the larger block_q",
            BLOCKS_CALL,
            blocks_test(wrong_tie),
            (blocks_case(1000, 4, 2, 4), blocks_case(900, 1, 2, 1)),
            BLOCKS_DRAW,
            {"": "tie"},
        ),
        refuses(
            BLOCKS_CALL,
            (blocks_case(2047, 16), blocks_case(100, 64), blocks_case(1023, 5, 4, 16)),
            "ValueError if the smallest tiles do not fit",
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "elements": "sram_bytes counts bytes, block_q * d counts elements. How many elements go into the budget?",
        "key_value": "K and V are two tiles of block_k rows each, and both lie in SRAM when P V is computed.",
        "scores": "The scores of a tile have to lie somewhere too: block_q x block_k of them.",
        "too_large": "Put your pair into the docstring's inequality. Which of its three terms is larger than you "
        "counted it?",
        "multiple": "Round down to a multiple at the very end: x // multiple_of * multiple_of.",
        "smaller": "A budget used up exactly still fits: <=, not <. And block_q and block_k may differ: have you "
        "gone through every block_q, with the largest block_k for each?",
        "square": "Nothing asks for block_q = block_k. A row of Q costs d elements, a row of keys 2 d: give each "
        "block_q the block_k that fits beside it.",
        "tie": "Two pairs make equally many scores. The one with the larger block_q reads K and V less often; "
        "in a loop over rising block_q that is >= instead of >.",
        "refuse": "If not even multiple_of x multiple_of fits, raise ValueError; a pair that does not fit, or a "
        "block of 0, helps no one.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "the four tiles fit in sram_bytes",
            WrongAnswer("M read as elements", "elements", {"sram_bytes // dtype_bytes": "sram_bytes"}),
            WrongAnswer("V forgotten", "key_value", {"(2 * d + block_q)": "(d + block_q)"}),
            WrongAnswer("scores forgotten", "scores", {"(2 * d + block_q)": "(2 * d)"}),
        ),
        *caught_by(
            "both sizes are multiples of multiple_of",
            WrongAnswer("block_k not rounded", "multiple", {"fits // multiple_of * multiple_of": "fits"}),
        ),
        *caught_by(
            "no pair that fits makes more scores",
            WrongAnswer("squares only", "square", function=lambda *a: _blocks_square(*a)),
            WrongAnswer("FA1's block_k = M / 4d", "smaller", function=lambda *a: _blocks_of_fa1(*a)),
        ),
        *caught_by(
            "of equal products, the larger block_q",
            WrongAnswer("the first of equals", "tie", {">= best[0]": "> best[0]"}),
        ),
        *caught_by(
            "ValueError if the smallest tiles do not fit",
            WrongAnswer(
                "the smallest tiles in any case", "refuse", {"best = None\n": "best = multiple_of, multiple_of\n"}
            ),
        ),
    ),
    right_answers=(
        Variant("every pair tried", function=lambda *a: _blocks_by_trying(*a)),
        Variant(
            "block_k in the outer loop",
            function=lambda *a: _blocks_keys_first(*a),
        ),
    ),
)


def _blocks_of_fa1(sram_bytes, d, dtype_bytes, multiple_of):
    """FA1 Alg. 1, line 1, M in elements, rounded down until it fits."""
    block_k = max(sram_bytes // dtype_bytes // (4 * d) // multiple_of, 1) * multiple_of
    block_q = max(min(block_k, d) // multiple_of, 1) * multiple_of
    while four_tiles_bytes(block_q, block_k, d, dtype_bytes) > sram_bytes and block_k > multiple_of:
        block_k -= multiple_of
    return block_q, block_k


def _blocks_square(sram_bytes, d, dtype_bytes, multiple_of):
    block = 0
    while four_tiles_bytes(block + multiple_of, block + multiple_of, d, dtype_bytes) <= sram_bytes:
        block += multiple_of
    return block, block


def _blocks_by_trying(*arguments):
    try:
        return right_blocks(*arguments)
    except ValueError:
        raise ValueError("nothing fits") from None


def _blocks_keys_first(sram_bytes, d, dtype_bytes, multiple_of):
    pairs = []
    for block_k in range(multiple_of, sram_bytes, multiple_of):
        left = sram_bytes / dtype_bytes - 2 * block_k * d
        block_q = int(left // (d + block_k)) // multiple_of * multiple_of
        if block_q <= 0:
            break
        pairs.append((block_q * block_k, block_q, block_k))
    if not pairs:
        raise ValueError("nothing fits")
    return max(pairs)[1:]


def visited_tiles(n_q, n_k, block_q, block_k, causal):
    """The tiles of scores that have to be computed, queries in the outer loop.

    n_q, n_k: queries and keys. block_q, block_k: rows of a query tile and of a key tile; the last tile of either
        may be shorter. causal: query i sees keys 0 to i + n_k - n_q, else every key.
    Returns a list of (i, j), query tile and key tile counted from 0, in the order of visiting: all j of tile 0,
        then all j of tile 1. A tile is visited if at least one of its queries sees at least one of its keys.

    >>> visited_tiles(4, 4, 2, 2, causal=True)
    [(0, 0), (1, 0), (1, 1)]
    """
    tiles = []
    for i in range((n_q + block_q - 1) // block_q):
        last_query = min((i + 1) * block_q, n_q) - 1
        for j in range((n_k + block_k - 1) // block_k):
            if not causal or j * block_k <= last_query + n_k - n_q:
                tiles.append((i, j))
    return tiles


def right_tiles(n_q, n_k, block_q, block_k, causal):
    """From the mask itself, query by query and key by key."""
    tiles = {
        (query // block_q, key // block_k)
        for query in range(n_q)
        for key in range(n_k)
        if not causal or key <= query + n_k - n_q
    }
    return sorted(tiles)


def tiles_test(answer, **inputs):
    returned, right = answer(*inputs.values()), right_tiles(**inputs)
    if not isinstance(returned, list | tuple) or not all(
        isinstance(tile, list | tuple) and len(tile) == 2 for tile in returned
    ):
        return only("type", "the answer did not return a list of pairs (i, j)", show(returned), show(right))
    tiles = [(int(i), int(j)) for i, j in returned]
    if tiles == right:
        return None
    extra, missing = set(tiles) - set(right), set(right) - set(tiles)
    findings = []
    if extra:
        findings.append(Finding("", "extra", f"visited for nothing: {show(sorted(extra))}"))
    if missing:
        findings.append(Finding("", "missing", f"never visited: {show(sorted(missing))}"))
    if not findings:
        kind = "twice" if len(set(tiles)) < len(tiles) else "order"
        text = "a tile is visited twice" if kind == "twice" else "the right tiles, in another order"
        findings.append(Finding("", kind, text))
    return Evidence(tuple(findings), show(tiles), show(right))


def tiles_case(n_q, n_k, block_q, block_k, causal=True):
    return {"n_q": n_q, "n_k": n_k, "block_q": block_q, "block_k": block_k, "causal": causal}


def draw_tiles(relation="any", causal=(True,), block=(1, 4)):
    """relation: "equal" lengths, more "keys" or more "queries"."""

    def draw():
        def lengths(inputs):
            more = {"equal": (0, 0), "keys": (0, 4), "queries": (4, 0)}.get(relation)
            if more:
                n = inputs["n_q"]
                inputs |= {"n_q": n + more[0], "n_k": n + more[1]}
            return inputs

        sizes = {"n_q": (1, 9), "n_k": (1, 9), "block_q": block, "block_k": block}
        return draw_counts(**sizes, causal=list(causal))().map(lengths)

    return draw


TILES_CALL = "visited_tiles(n_q, n_k, block_q, block_k, causal)"

TILES = Exercise(
    id="06.visited_tiles",
    title="Which tiles are visited",
    points=2,
    minutes=7,
    difficulty="easy",
    answer=visited_tiles,
    hints=(
        "Draw the 4 x 4 mask of the sentence and cut it into 2 x 2 tiles. Which query of a tile decides whether "
        "the tile is needed, and which key?",
        "A tile is needed if its last query sees its first key: nobody in the tile sees further than the last "
        "query, and no key of it is seen sooner than the first.",
        "For each i: last_query = min((i + 1) * block_q, n_q) - 1. For each j: keep (i, j) if not causal or j * "
        "block_k <= last_query + n_k - n_q. The number of tiles is rounded up.",
    ),
    reasoning="Visibility grows with the query and shrinks with the key, so the corner of the tile that is most "
    "likely to be visible is its last query with its first key; if that pair is hidden, all are."
    "The short last tile needs no care: the last query sees every key.",
    properties=(
        Property(
            "not causal: every tile, the short last ones too",
            TILES_CALL,
            tiles_test,
            (tiles_case(4, 4, 2, 2, False), tiles_case(5, 7, 2, 3, False), tiles_case(1, 1, 4, 4, False)),
            draw_tiles(causal=(False,)),
            {": missing": "tail", ": extra": "count", "": "order"},
        ),
        Property(
            "causal, square tiles: those that the diagonal touches, and those before it",
            TILES_CALL,
            tiles_test,
            (tiles_case(4, 4, 2, 2), tiles_case(3, 3, 1, 1), tiles_case(6, 6, 2, 2)),
            hints={": extra": "skip", ": missing": "diagonal", "": "order"},
        ),
        Property(
            "causal, query tiles and key tiles of different sizes",
            TILES_CALL,
            tiles_test,
            (tiles_case(8, 8, 4, 2), tiles_case(8, 8, 2, 4), tiles_case(12, 12, 4, 3)),
            hints={"": "corner"},
        ),
        Property(
            "causal, more keys than queries: the last query sees the last key",
            TILES_CALL,
            tiles_test,
            (tiles_case(2, 6, 2, 2), tiles_case(4, 8, 2, 2)),
            draw_tiles("keys"),
            {"": "offset", ": extra": "offset"},
        ),
        Property(
            "causal, any lengths and any tiles",
            TILES_CALL,
            tiles_test,
            (tiles_case(5, 9, 4, 1), tiles_case(6, 2, 2, 2), tiles_case(5, 5, 4, 1)),
            draw_tiles(),
            {"": "corner"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "tail": "How many tiles of 3 do 7 keys make? Two full ones and a short one: round up.",
        "count": "There are only so many tiles: n / block, rounded up, of queries and of keys.",
        "order": "Each tile once, all key tiles of query tile 0 first, then those of query tile 1.",
        "skip": "Is any score of this tile visible? If its last query does not see its first key, none is.",
        "diagonal": "A tile that the diagonal crosses holds visible scores: at least that of its last query and its "
        "first key.",
        "corner": "Compare positions, not tile numbers: tile i ends at query (i + 1) * block_q - 1, tile j starts at "
        "key j * block_k. If that last query sees that first key, the tile is needed.",
        "offset": "The last query sees the last key, however many keys come before: query i sees keys 0 to "
        "i + n_k - n_q.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "not causal: every tile, the short last ones too",
            WrongAnswer("the last tile of keys dropped", "tail", {"(n_k + block_k - 1) // block_k": "n_k // block_k"}),
            WrongAnswer(
                "keys in the outer loop", "order", {"return tiles": "return sorted(tiles, key=lambda tile: tile[1])"}
            ),
        ),
        *caught_by(
            "causal, square tiles: those that the diagonal touches, and those before it",
            WrongAnswer("causal ignored", "skip", {"not causal or ": "True or "}),
            WrongAnswer(
                "the diagonal's corner missed", "diagonal", {"j * block_k <= last": "j * block_k + block_k - 1 < last"}
            ),
            WrongAnswer("one key too far", "skip", {"j * block_k <= last_query": "j * block_k <= 1 + last_query"}),
        ),
        *caught_by(
            "causal, query tiles and key tiles of different sizes",
            WrongAnswer(
                "the tile's first query decides",
                "corner",
                {"min((i + 1) * block_q, n_q) - 1": "i * block_q"},
            ),
            WrongAnswer(
                "tile numbers compared",
                "corner",
                {"j * block_k <= last_query + n_k - n_q": "j <= i + (n_k - n_q) // block_k"},
            ),
        ),
        *caught_by(
            "causal, more keys than queries: the last query sees the last key",
            WrongAnswer("aligned at the top left", "offset", {"last_query + n_k - n_q": "last_query"}),
        ),
    ),
    right_answers=(
        Variant("from the mask", function=lambda *a: right_tiles(*a)),
        Variant("by the end of the keys", function=lambda *a: _tiles_by_end(*a)),
    ),
)


def _tiles_by_end(n_q, n_k, block_q, block_k, causal):
    tiles = []
    for start in range(0, n_q, block_q):
        stop = min(start + block_q, n_q)
        end = min(max(stop + n_k - n_q, 0), n_k) if causal else n_k
        tiles += [[start // block_q, j] for j in range(-(-end // block_k))]
    return tiles


def flash_attention_bytes(n, d, block_q, bytes_per_element, order):
    """Bytes that FlashAttention reads and writes for one head, n queries and n keys, nothing masked.

    Tiles are square: block_q rows of Q and O, and as many of K and V; the last tile may be shorter.
    order: "q_outer": Q read once, O written once, K and V read once for every query tile.
        "kv_outer": O, l and m written once at the start; K and V read once; for every key tile Q, O, l and m
        read, and O, l and m written. l and m hold n numbers of 4 bytes each, whatever bytes_per_element is.
    Returns the bytes read and written together, a whole number. Raises ValueError for another order.

    >>> flash_attention_bytes(4, 2, 2, 8, "q_outer")
    384
    """
    n_tiles = (n + block_q - 1) // block_q
    matrix_bytes = n * d * bytes_per_element
    statistics_bytes = 2 * n * 4
    if order == "q_outer":
        return 2 * matrix_bytes + n_tiles * 2 * matrix_bytes
    if order == "kv_outer":
        start_bytes = matrix_bytes + statistics_bytes
        return start_bytes + 2 * matrix_bytes + n_tiles * (3 * matrix_bytes + 2 * statistics_bytes)
    raise ValueError(f"order is {order!r}; accepted: 'q_outer', 'kv_outer'")


def total_bytes(n, d, block_q, bytes_per_element, order):
    sizes = {"block_q": block_q, "block_k": block_q, "dtype_bytes": bytes_per_element}
    return traffic.flash_attention(n, n, d, **sizes, order=order).total_bytes


def bytes_test(answer, n, d, block_q, bytes_per_element, order):
    inputs = {"n": n, "d": d, "block_q": block_q, "bytes_per_element": bytes_per_element, "order": order}
    right = total_bytes(**inputs)
    matrix, statistics = n * d * bytes_per_element, 8 * n
    tiles, full = -(-n // block_q), n // block_q

    def readings():
        if order == "q_outer":
            slips = {
                "K and V are read once in all": 4 * matrix,
                "only one of K and V is read": (2 + tiles) * matrix,
                "the short last tile is left out": (2 + 2 * full) * matrix,
                "O is not written": (1 + 2 * tiles) * matrix,
                "O is written for every tile of keys": (1 + 3 * tiles) * matrix,
            }
        else:
            slips = {
                "the first writing of O, l and m is left out": right - matrix - statistics,
                "l and m are left out": right - (1 + 2 * tiles) * statistics,
                "l and m take bytes_per_element": right + (1 + 2 * tiles) * 2 * n * (bytes_per_element - 4),
                "the short last tile is left out": right - (tiles - full) * (3 * matrix + 2 * statistics),
                "O is not read back": right - tiles * matrix,
                "K and V are read for every query tile": total_bytes(**inputs | {"order": "q_outer"}),
            }
        return slips | {"elements are counted, not bytes": right / bytes_per_element}

    returned = answer(*inputs.values())
    part = Part("the total", np.float64(right), np.float64(right), 0.0, readings)
    if isinstance(returned, int | np.integer):
        return only(*_bytes_off(int(returned), part), show(returned), show(right)) if returned != right else None
    return compare(returned, [part])


def _bytes_off(returned, part):
    """(kind, text) of a wrong whole number."""
    right = int(part.expected)
    for mistake, value in part.readings().items():
        if returned == value != right:
            return mistake, f"this is the total when {mistake}"
    return "values", f"{abs(returned - right):,} bytes too {'many' if returned > right else 'few'}"


def bytes_case(n, d, block_q, bytes_per_element=2, order="q_outer"):
    return {"n": n, "d": d, "block_q": block_q, "bytes_per_element": bytes_per_element, "order": order}


def draw_bytes(order):
    return draw_counts(n=(1, 12), d=(1, 4), block_q=(1, 5), bytes_per_element=[2, 4], order=[order])


BYTES_CALL = "flash_attention_bytes(n, d, block_q, bytes_per_element, order)"

BYTES = Exercise(
    id="06.flash_attention_bytes",
    title="Bytes of both loop orders",
    points=3,
    minutes=8,
    difficulty="medium",
    answer=flash_attention_bytes,
    hints=(
        "Write down the two loops. Which loads stand in the inner loop, and how often does it run from the beginning?",
        "With T = n / block_q, rounded up: q_outer reads K and V T times each. kv_outer reads Q, O, l and m T times "
        "each and writes O, l and m T times, plus once at the start.",
        "matrix = n d bytes_per_element, statistics = 2 n 4. q_outer: 2 matrix + 2 T matrix. kv_outer: (matrix + "
        "statistics) + 2 matrix + T (3 matrix + 2 statistics).",
    ),
    reasoning="What stands in the outer loop is read once, what stands in the inner loop once per outer tile. "
    "q_outer re-reads two matrices; kv_outer re-reads two (Q and O) and rewrites one, since an output row is not "
    "finished before the last key tile. So for square tiles kv_outer moves half as much again, and the statistics.",
    properties=(
        Property(
            "q_outer, one tile that holds everything: Q, K, V read once, O written once",
            BYTES_CALL,
            bytes_test,
            (bytes_case(4, 2, 4, 8), bytes_case(3, 2, 16)),
            hints={": elements are counted, not bytes": "elements", ": O is not written": "output", "": "once"},
        ),
        Property(
            "q_outer: K and V once for every query tile",
            BYTES_CALL,
            bytes_test,
            (bytes_case(4, 2, 2, 8), bytes_case(4096, 128, 64)),
            hints={
                ": K and V are read once in all": "linear",
                ": only one of K and V is read": "both",
                ": O is written for every tile of keys": "output",
                "": "tiles",
            },
        ),
        Property(
            "q_outer: a short last tile counts as a tile",
            BYTES_CALL,
            bytes_test,
            (bytes_case(5, 2, 2), bytes_case(100, 64, 32)),
            draw_bytes("q_outer"),
            {"": "tail"},
        ),
        Property(
            "kv_outer: Q, O, l and m once for every key tile",
            BYTES_CALL,
            bytes_test,
            (bytes_case(4, 2, 2, 8, "kv_outer"), bytes_case(5, 2, 2, 2, "kv_outer")),
            draw_bytes("kv_outer"),
            {
                ": the first writing of O, l and m is left out": "start",
                ": l and m are left out": "statistics",
                ": l and m take bytes_per_element": "statistics_dtype",
                ": O is not read back": "read_back",
                ": K and V are read for every query tile": "other_order",
                ": the short last tile is left out": "tail",
                "": "kv",
            },
        ),
        refuses(BYTES_CALL, (bytes_case(4, 2, 2, 2, "rows"),), "another order is refused with a ValueError"),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "elements": "n d counts elements. How many bytes has each?",
        "output": "O is written once: when a query tile has seen all keys, its rows are final.",
        "once": "One tile holds everything, so each of the four matrices passes once: 4 n d elements.",
        "linear": "Each query tile needs every key. When the second query tile comes, the keys of the first are long "
        "gone from SRAM.",
        "both": "The scores need K, the weighted sum needs V: both are read.",
        "tiles": "How many query tiles are there, and how many bytes of K and V does each of them read?",
        "tail": "7 rows in tiles of 3 are three tiles: the short one reads all keys as well. Round up.",
        "start": "Before the loops O, l and m are filled with 0, 0 and -inf in HBM, which is a write.",
        "statistics": "l and m do not stay in SRAM when the query tile leaves: 2 n numbers of 4 bytes, read and "
        "written for every key tile.",
        "statistics_dtype": "m and l stay float32, whatever the inputs are: 4 bytes each, not bytes_per_element.",
        "read_back": "The unfinished output comes back to be rescaled: O is read for every key tile, not only written.",
        "other_order": "With keys in the outer loop K and V are read once; what is in the inner loop now?",
        "kv": "List for one key tile all that is read (Q, O, l, m) and written (O, l, m), then multiply.",
        "refuse": "Only 'q_outer' and 'kv_outer' have an answer. Raise ValueError for anything else.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "q_outer, one tile that holds everything: Q, K, V read once, O written once",
            WrongAnswer(
                "elements for bytes", "elements", {"matrix_bytes = n * d * bytes_per_element": "matrix_bytes = n * d"}
            ),
        ),
        *caught_by(
            "q_outer: K and V once for every query tile",
            WrongAnswer("traffic linear in n", "linear", {"n_tiles * 2 * matrix_bytes\n": "2 * matrix_bytes\n"}),
        ),
        *caught_by(
            "q_outer: a short last tile counts as a tile",
            WrongAnswer("tiles rounded down", "tail", {"(n + block_q - 1) // block_q": "max(n // block_q, 1)"}),
        ),
        *caught_by(
            "kv_outer: Q, O, l and m once for every key tile",
            WrongAnswer("the first writes forgotten", "start", {"start_bytes + 2 *": "2 *"}),
            WrongAnswer("statistics forgotten", "statistics", {"statistics_bytes = 2 * n * 4": "statistics_bytes = 0"}),
            WrongAnswer(
                "statistics in the inputs' dtype", "statistics_dtype", {"2 * n * 4": "2 * n * bytes_per_element"}
            ),
            WrongAnswer("O written, not read back", "read_back", {"3 * matrix_bytes": "2 * matrix_bytes"}),
        ),
        *caught_by(
            "another order is refused with a ValueError",
            WrongAnswer("any other order is kv_outer", "refuse", {'if order == "kv_outer":': "if True:"}),
        ),
    ),
    right_answers=(
        Variant("tile by tile", function=lambda *a: _bytes_by_loops(*a)),
        Variant("as a float", function=lambda *a: float(_bytes_by_loops(*a))),
    ),
)


def _bytes_by_loops(n, d, block, size, order):
    row, outer, inner = d * size, 0, 0
    if order not in ("q_outer", "kv_outer"):
        raise ValueError(order)
    for start in range(0, n, block):
        rows = min(block, n - start)
        outer += rows * 2 * row
        inner += n * 2 * row if order == "q_outer" else n * (3 * row + 16)
    return outer + inner + (0 if order == "q_outer" else n * (row + 8))


def tiled_attention(machine, Q, K, V, O, block_q, block_k, causal=False):
    """Attention, tile by tile, on a machine that counts every byte. The result is stored in O.

    machine: a course_lib.machine.Machine. Q, O: handles, [n_q, d]; K, V: handles, [n_k, d]; one float dtype.
    block_q, block_k: rows of a query tile and of a key tile, at least 1; they need not divide n_q and n_k.
    causal: query i sees keys 0 to i + n_k - n_q; a query that sees none gets an output of 0.
    Scores are divided by sqrt(d). Compute in float32 or better, and store in O's dtype. Returns nothing.
    Traffic: Q is read once and O written once; K and V are read once for each query tile, except the tiles that
        causal hides from all of its queries. Nothing else is put in HBM.
    SRAM: never more than 16 * (block_q * d + 2 * block_k * d + block_q * block_k) bytes, whatever n_q and n_k.

    >>> from course_lib.machine import Machine
    >>> machine, o = Machine(), np.zeros((2, 1))
    >>> arrays = np.array([[1.0], [1.0]]), np.array([[3.0], [3.0]]), np.array([[2.0], [4.0]]), o
    >>> Q, K, V, O = (machine.hbm(array, name) for array, name in zip(arrays, "QKVO"))
    >>> tiled_attention(machine, Q, K, V, O, block_q=1, block_k=1)
    >>> print(o.tolist(), machine.report().by_tensor["K"].read_bytes)
    [[3.0], [3.0]] 32
    """
    n_q, d = Q.shape
    n_k = len(K)
    for q_start in range(0, n_q, block_q):
        q_stop = min(q_start + block_q, n_q)
        q = machine.load(Q, (q_start, q_stop)).astype(np.float32)
        m = machine.full(len(q), -np.inf)
        l = machine.full(len(q), 0.0)
        acc = machine.full((len(q), d), 0.0)
        kv_end = min(max(q_stop + n_k - n_q, 0), n_k) if causal else n_k
        for k_start in range(0, kv_end, block_k):
            k_stop = min(k_start + block_k, n_k)
            k = machine.load(K, (k_start, k_stop))
            v = machine.load(V, (k_start, k_stop))
            s = q @ k.T * d**-0.5
            if causal:
                visible = np.arange(q_start, q_stop)[:, None] + n_k - n_q
                s[np.arange(k_start, k_stop) > visible] = -np.inf
            m_new = np.maximum(m, s.max(axis=1))
            shift = np.where(m_new == -np.inf, 0.0, m_new)  # finite, so that -inf - shift is never NaN
            alpha = np.exp(m - shift)
            p = np.exp(s - shift[:, None])
            l = alpha * l + p.sum(axis=1)
            acc = alpha[:, None] * acc + p @ v
            m = m_new
            del k, v, s, p
        out = acc / np.where(l == 0, 1.0, l)[:, None]
        machine.store(O, (q_start, q_stop), out.astype(O.dtype))


class WatchedMachine(Machine):
    """A memory machine that notices an answer that looks past it.

    behind: names of tensors and tiles whose arrays were touched from outside the machine. finished: the module of
    the course whose loads these are, if they are not the answer's own.
    """

    def __init__(self, sram_bytes=np.inf):
        super().__init__(sram_bytes)
        self.behind, self.finished = [], ""

    def hbm(self, array, name=None):
        handle = super().hbm(array, name)
        return _WatchedArray(self, array, handle.name)

    def load(self, handle, rows):
        frame = sys._getframe(1)
        while frame is not None and not self.finished:
            module = frame.f_globals.get("__name__", "")
            if module.startswith(("course_lib.reference", "course_lib.kernels")):
                self.finished = module
            frame = frame.f_back
        return super().load(handle, rows)

    def _tile(self, array, name):
        tile = super()._tile(array, name)
        return _WatchedTile(tile._storage, array)


class _Watched:
    """Mixed into what holds an array: only the machine's own module may reach it unnoticed."""

    @property
    def _array(self):
        if sys._getframe(1).f_globals.get("__name__") != "course_lib.machine":
            self._watching.behind.append(self.name)
        return self._values

    @_array.setter
    def _array(self, array):
        self._values = array


class _WatchedArray(_Watched, HBMArray):
    _watching = property(lambda self: self._machine)


class _WatchedTile(_Watched, Tile):
    _watching = property(lambda self: self._storage.machine)


UNSCALED = "the scores are not multiplied by 1/sqrt(d)"
NOT_DIVIDED = "the sum is not divided by l at the end"
TAIL_DROPPED = "the keys after the last full tile are left out"
PADDED = "the short last tile is filled up with keys of zeros, which get weight"
L_NOT_RESCALED = "l is not rescaled when the max rises"
ACC_NOT_RESCALED = "acc is not rescaled when the max rises"
UPSIDE_DOWN = "the old sums are multiplied by exp(m_new - m_old), the rescale upside down"
FROM_OWN_MAX = "each tile's terms are measured from the tile's own max"
CAUSAL_IGNORED = "every query sees every key"
ONE_TOO_MANY = "each query sees one key too many"
ONE_TOO_FEW = "each query sees one key too few"
TOP_LEFT = "query i sees keys 0 to i, whatever n_k - n_q is"
MASKED_AS_ZERO = "hidden scores are set to 0, not to -inf"


def run_on(machine, answer, q, k, v, block_q, block_k, causal):
    """Calls the answer on a machine. Returns o, [n_q, d], NaN where nothing was stored, and Evidence of such rows."""
    o = np.full_like(q, np.nan)
    handles = [machine.hbm(array, name) for array, name in zip((q, k, v, o), "QKVO", strict=True)]
    answer(machine, *handles, block_q, block_k, causal)
    stored = np.zeros(len(o), bool)
    for event in machine.report().events:
        if event.kind == "store" and event.tensor == "O":
            stored[event.start : event.stop] = True
    if stored.all():
        return o, None
    rows = np.flatnonzero(~stored).tolist()
    return o, only("unwritten", f"these rows of O were never stored: {show(rows)}", show(o))


def slipped(scores, v, block_k, l_factor=np.exp, acc_factor=np.exp, own_max=False):
    """The recurrence over key tiles with a slip in it; the factors are functions of m_old - m_new."""
    m, l = np.full(len(scores), -np.inf), np.zeros(len(scores))
    acc = np.zeros((len(scores), v.shape[1]))
    for start in range(0, len(v), block_k):
        s = scores[:, start : start + block_k]
        m_new = np.maximum(m, s.max(axis=1))
        p = np.exp(s - (s.max(axis=1) if own_max else m_new)[:, None])
        step = np.where(m > -np.inf, m - m_new, 0.0)  # nothing to rescale before the first tile
        l = l * l_factor(step) + p.sum(axis=1)
        acc = acc * acc_factor(step)[:, None] + p @ v[start : start + block_k]
        m = m_new
    return acc / l[:, None]


def output_parts(q, k, v, block_q, block_k, causal):
    exact, plain = exact_and_plain(lambda *qkv: reference.attention(*qkv, causal=causal), q, k, v)
    n_q, n_k = len(q), len(k)

    def masked(last_seen, hidden=-np.inf):
        scores = reference.scores(q, k)
        return np.where(np.arange(n_k) > np.arange(n_q)[:, None] + last_seen, hidden, scores) if causal else scores

    def weighted(scores, values=v):
        return reference.stable_softmax(scores) @ values

    def readings():
        right = masked(n_k - n_q)
        full, padding = n_k // block_k * block_k, -n_k % block_k
        slips = {
            UNSCALED: weighted(right * np.sqrt(q.shape[1])),
            NOT_DIVIDED: np.exp(right - right.max(axis=1, keepdims=True)) @ v,
            TAIL_DROPPED: weighted(right[:, :full], v[:full]) if full else np.zeros_like(exact),
            PADDED: weighted(np.pad(right, ((0, 0), (0, padding))), np.pad(v, ((0, padding), (0, 0)))),
            L_NOT_RESCALED: slipped(right, v, block_k, l_factor=np.ones_like),
            ACC_NOT_RESCALED: slipped(right, v, block_k, acc_factor=np.ones_like),
            UPSIDE_DOWN: slipped(right, v, block_k, lambda x: np.exp(-x), lambda x: np.exp(-x)),
            FROM_OWN_MAX: slipped(right, v, block_k, own_max=True),
        }
        if causal:
            slips |= {
                CAUSAL_IGNORED: weighted(masked(n_k)),
                ONE_TOO_MANY: weighted(masked(n_k - n_q + 1)),
                ONE_TOO_FEW: weighted(masked(n_k - n_q - 1)),
                TOP_LEFT: weighted(masked(0)),
                MASKED_AS_ZERO: weighted(masked(n_k - n_q, hidden=0.0)),
            }
        return slips

    # A score's own rounding, relative to its terms, is a relative error of its weight.
    conditioning = 1 + (np.abs(q) @ np.abs(k).T).max() / np.sqrt(q.shape[1])
    return [Part("O", exact, plain, conditioning * np.abs(v).max(), readings)]


def output_test(answer, **inputs):
    o, unwritten = run_on(Machine(), answer, **inputs)
    return unwritten or compare(o, output_parts(**inputs))


def random_inputs(n_q, n_k, d):
    rng = np.random.default_rng(0)
    return [(2 * rng.standard_normal((n, d))).astype(np.float16) for n in (n_q, n_k, n_k)]


def float16_test(answer, n_q, n_k, d, block_q, block_k, causal):
    """Twice the error that comes from rounding the exact output to float16 once, and no more."""
    q, k, v = random_inputs(n_q, n_k, d)
    o, unwritten = run_on(Machine(), answer, q, k, v, block_q, block_k, causal)
    exact = reference.attention(*(array.astype(np.float64) for array in (q, k, v)), causal=causal)
    return unwritten or compare(o, [Part("O", exact, exact.astype(np.float16), np.abs(exact).max())])


def through_machine(answer, n_q, n_k, d, block_q, block_k, causal):
    machine = WatchedMachine()
    run_on(machine, answer, *random_inputs(n_q, n_k, d), block_q, block_k, causal)
    if machine.behind:
        names = ", ".join(dict.fromkeys(name.split("[")[0] for name in machine.behind))
        text = f"the arrays of {names} were reached behind the machine's back, where nothing is counted"
        return only("behind", text)
    if machine.finished:
        return only("finished", f"the loads are made by a finished implementation, {machine.finished}")
    return None


def budget_bytes(block_q, block_k, d):
    return 16 * (block_q * d + 2 * block_k * d + block_q * block_k)


def peak_test(answer, n_q, n_k, d, block_q, block_k, causal):
    machine = Machine(budget_bytes(block_q, block_k, d))
    return run_on(machine, answer, *random_inputs(n_q, n_k, d), block_q, block_k, causal)[1]


def traffic_test(answer, n_q, n_k, d, block_q, block_k, causal):
    machine = Machine()
    run_on(machine, answer, *random_inputs(n_q, n_k, d), block_q, block_k, causal)
    counted = machine.report().by_tensor
    sizes = {"block_q": block_q, "block_k": block_k, "dtype_bytes": 2, "causal": causal}
    right = traffic.flash_attention(n_q, n_k, d, **sizes).by_tensor
    findings = [
        Finding(name, "hbm", f"{name}, {bytes_moved[1]:,} bytes written, is put in HBM beside Q, K, V and O")
        for name, bytes_moved in counted.items()
        if name not in right
    ]
    for name, (read, write) in right.items():
        for kind, verb, now, needed in (
            ("read", "read from", counted[name].read_bytes, read),
            ("written", "written to", counted[name].write_bytes, write),
        ):
            if now != needed:
                more = "more" if now > needed else "less"
                findings.append(Finding(name, f"{kind} {more}", f"{now:,} bytes are {verb} {name}, {needed:,} are due"))
    if not findings:
        return None
    return Evidence(tuple(findings), _shown_bytes(counted), _shown_bytes(right))


def _shown_bytes(by_tensor):
    return "\n".join(f"{name}: {read:>7,} bytes read, {write:>7,} written" for name, (read, write) in by_tensor.items())


def attention_case(q, k, v, block_q, block_k, causal=False):
    as_floats = (np.array(array, dtype=np.float64) for array in (q, k, v))
    return dict(zip("qkv", as_floats, strict=True)) | {"block_q": block_q, "block_k": block_k, "causal": causal}


def score_case(scores, block_k, rows=1, causal=False):
    """With d = 1 and queries of 1 the keys are the scores, and no scale can hide or make a mistake."""
    keys = [[s] for s in scores]
    values = [[2.0**-i] for i in range(len(scores))]
    return attention_case([[1]] * rows, keys, values, rows, block_k, causal)


def sized_case(n_q, n_k, d, block_q, block_k, causal=False):
    return {"n_q": n_q, "n_k": n_k, "d": d, "block_q": block_q, "block_k": block_k, "causal": causal}


def draw_attention(relation="any", causal=False, one_tile=False):
    """relation: of n_q to n_k: "equal", "fewer", "more" or "any"."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            n_q, d = draw(st.integers(1, 4)), draw(st.integers(1, 2))
            least, most = {"equal": (n_q, n_q), "fewer": (n_q + 1, n_q + 3), "more": (1, max(n_q - 1, 1))}.get(
                relation, (1, 5)
            )
            n_k = draw(st.integers(least, most))
            blocks = (n_q, n_k) if one_tile else (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
            matrices = (arrays(draw, n, d, of=numbers()) for n in (n_q, n_k, n_k))
            return attention_case(*matrices, *blocks, causal)

        return inputs()

    return draw


def draw_scores(order):
    """One query whose scores rise or fall from key to key."""

    def draw():
        from hypothesis import strategies as st

        def case(gaps, block_k):
            rising = np.cumsum(gaps).tolist()
            return score_case(rising if order == "rising" else rising[::-1], block_k)

        # 2 or 4 scores, so that tiles of 1 or 2 come out even.
        gaps = st.sampled_from([2, 4]).flatmap(lambda n: st.lists(st.integers(1, 3), min_size=n, max_size=n))
        return st.builds(case, gaps, st.integers(1, 2))

    return draw


ON_MACHINE = (
    "handles = [machine.hbm(array, name) for array, name in zip((q, k, v, o), 'QKVO')]\n"
    "tiled_attention(machine, *handles, block_q, block_k, causal)"
)
OUTPUT_CALL = f"from course_lib.machine import Machine\nmachine, o = Machine(), np.full_like(q, np.nan)\n{ON_MACHINE}"
RANDOM = (
    "from course_lib.machine import Machine\n"
    "rng = np.random.default_rng(0)\n"
    "q, k, v = ((2 * rng.standard_normal((n, d))).astype(np.float16) for n in (n_q, n_k, n_k))\n"
)
RANDOM_CALL = f"{RANDOM}machine, o = Machine(), np.full_like(q, np.nan)\n{ON_MACHINE}"
PEAK_CALL = (
    f"{RANDOM}machine = Machine(16 * (block_q * d + 2 * block_k * d + block_q * block_k))\n"
    f"o = np.full_like(q, np.nan)\n{ON_MACHINE}"
)
SENTENCE_CASE = attention_case(example.Q, example.K, example.V, block_q=2, block_k=2, causal=True)

ATTENTION = Exercise(
    id="06.tiled_attention",
    title="Attention, tile by tile",
    points=6,
    minutes=20,
    difficulty="hard",
    answer=tiled_attention,
    hints=(
        "Lesson 05 carried one query through all keys. Which of m, l and acc get a second axis when a tile of "
        "queries goes through, and which loop stands outside?",
        "For each query tile: load it, start m, l, acc with machine.full; for each key tile that one of its queries "
        "sees: load K and V rows, scores, mask, lesson 05's update with [:, None] where a row's number meets the "
        "tile; after the last key tile divide by l and store. Cut both tiles at n_q and n_k.",
        "for q_start in range(0, n_q, block_q): q_stop = min(q_start + block_q, n_q); the keys end at n_k, or causal "
        "at min(max(q_stop + n_k - n_q, 0), n_k). In the inner loop s = q @ k.T / d**0.5, in float32; where key > "
        "query + n_k - n_q set s to -inf; then the update, subtracting 0 where m_new is -inf. Store (acc / l), with "
        "1 for an l of 0, as O.dtype.",
    ),
    reasoning="Two loops around lesson 05's update. The query tile and its state stay in SRAM while the keys pass, so "
    "O is written once and nothing of size n_q x n_k ever exists. kv_end skips key tiles that even the tile's last "
    "query does not see; within the last tiles the mask does the rest. A short tile is a shorter slice, so no padding "
    "can get weight. float32 comes in with q, and leaves when O is stored.",
    properties=(
        Property(
            "one tile that holds everything gives softmax(Q K^T / sqrt(d)) V",
            OUTPUT_CALL,
            output_test,
            (
                attention_case([[1, 1, 1, 1]], [[1, 0, 0, 1], [0, 0, 0, 0]], [[1, 2, 3, 4], [4, 0, 1, 1]], 1, 2),
                attention_case(example.Q, example.K, example.V, 4, 4),
            ),
            draw_attention(one_tile=True),
            {f": {UNSCALED}": "scale", f": {NOT_DIVIDED}": "divide", "": "plain"},
        ),
        Property(
            "tiles of keys that leave the max alone",
            OUTPUT_CALL,
            output_test,
            (score_case([2, 1], 1), score_case([4, 3, 1, 0], 2)),
            draw_scores("falling"),
            {f": {FROM_OWN_MAX}": "own_max", "": "invariant"},
        ),
        Property(
            "tiles of keys that raise the max, each of them",
            OUTPUT_CALL,
            output_test,
            (score_case([1, 2], 1), score_case([0, 1, 3, 4], 2)),
            draw_scores("rising"),
            {
                f": {L_NOT_RESCALED}": "rescale_l",
                f": {ACC_NOT_RESCALED}": "rescale_acc",
                f": {UPSIDE_DOWN}": "upside_down",
                "": "invariant",
            },
        ),
        Property(
            "any lengths and any tiles: the last ones may be short",
            OUTPUT_CALL,
            output_test,
            (
                score_case([1, 2, 3], 2),
                score_case([1, 2, 3, 0, 2], 3, rows=3),
                attention_case([[1]] * 3, [[1]], [[2]], 2, 4),
            ),
            draw_attention(),
            {f": {PADDED}": "padded", "": "tail", ": exception": "tail", ": unwritten": "tail"},
        ),
        Property(
            "scores near 1000 do not overflow",
            OUTPUT_CALL,
            output_test,
            (score_case([1000, 999], 2), score_case([1000, 1001], 1)),
            hints={"": "not_shifted", ": nan": "not_shifted"},
        ),
        Property(
            "the max falls by 1000 from one tile of keys to the next",
            OUTPUT_CALL,
            output_test,
            (score_case([0, -1000], 1), score_case([0, 1, -1000, -1001], 2)),
            hints={"": "tile_max", ": nan": "tile_max"},
        ),
        Property(
            "all scores strongly negative",
            OUTPUT_CALL,
            output_test,
            (score_case([-1000, -1001], 2), score_case([-1000, -1001], 1)),
            hints={"": "start", ": nan": "start"},
        ),
        Property(
            "causal, as many queries as keys: query i sees keys 0 to i",
            OUTPUT_CALL,
            output_test,
            (score_case([1, 2, 3], 3, rows=3, causal=True), SENTENCE_CASE),
            draw_attention("equal", causal=True),
            {
                f": {CAUSAL_IGNORED}": "causal",
                f": {ONE_TOO_MANY}": "off_by_one",
                f": {ONE_TOO_FEW}": "off_by_one",
                f": {MASKED_AS_ZERO}": "mask_value",
                "": "causal",
            },
        ),
        Property(
            "causal, more keys than queries: the last query sees the last key",
            OUTPUT_CALL,
            output_test,
            (score_case([1, 2, 3, 4], 2, rows=2, causal=True), score_case([1, 2, 3], 2, rows=1, causal=True)),
            draw_attention("fewer", causal=True),
            {"": "offset"},
        ),
        Property(
            "causal, more queries than keys: a query that sees no key gets 0, never NaN",
            OUTPUT_CALL,
            output_test,
            (score_case([1], 1, rows=2, causal=True), score_case([1, 2], 1, rows=5, causal=True)),
            draw_attention("more", causal=True),
            {"": "nothing_seen", ": nan": "nothing_seen", ": exception": "nothing_seen", ": unwritten": "nothing_seen"},
        ),
        Property(
            "float16 comes in and goes out, and rounds once",
            RANDOM_CALL,
            float16_test,
            (sized_case(32, 512, 16, 16, 16),),
            hints={": precision": "precision", "": "precision"},
        ),
        Property(
            "all the work is the answer's own, on tiles that it loaded",
            RANDOM_CALL,
            through_machine,
            (sized_case(4, 6, 2, 2, 2),),
            hints={": behind": "behind", ": finished": "finished"},
        ),
        Property(
            "SRAM never holds more than 16 (block_q d + 2 block_k d + block_q block_k) bytes",
            PEAK_CALL,
            peak_test,
            (sized_case(192, 192, 16, 16, 16), sized_case(192, 192, 16, 16, 16, True)),
            hints={": exception": "peak"},
        ),
        Property(
            "Q read once, O written once, K and V read once for every query tile",
            RANDOM_CALL,
            traffic_test,
            (sized_case(8, 8, 4, 4, 2), sized_case(40, 56, 8, 16, 24)),
            hints={
                "O: written more": "write_once",
                "K V: read more": "again",
                "K: read more": "again",
                "V: read more": "again",
                ": hbm": "hbm",
                "": "again",
            },
        ),
        Property(
            "causal: tiles that no query of the tile sees are not read",
            RANDOM_CALL,
            traffic_test,
            (sized_case(8, 8, 4, 2, 2, True), sized_case(40, 56, 8, 16, 24, True), sized_case(9, 5, 4, 2, 2, True)),
            hints={"": "skip"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "masked": "-inf minus -inf is NaN. While a row has seen nothing its max is -inf: subtract 0 there instead.",
        "unwritten": "machine.store(O, (q_start, q_stop), tile) puts the finished rows in place; a return value is "
        "looked at by no one.",
        "scale": "The scores are divided by sqrt(d), once.",
        "divide": "After the last key tile acc still holds sums: divide by l before it is stored.",
        "plain": "With one tile there is nothing to carry over: scores, exp(s - max), times V, divided by the sum. "
        "Compare your O with that by hand.",
        "own_max": "Everything in l and acc is measured from the running max. The tile's own max only helps to find "
        "it.",
        "invariant": "Assert after each key tile that l is the sum of exp(s - m) over all keys so far. Which tile "
        "breaks it?",
        "rescale_l": "acc follows the new max and l does not. Multiply both by alpha = exp(m_old - m_new).",
        "rescale_acc": "l follows the new max and acc does not. Multiply both by alpha = exp(m_old - m_new).",
        "upside_down": "When the max rises the old sums must shrink. Is your alpha less than 1 or more?",
        "tail": "range(0, n, block) starts every tile, the short one too; its rows end at min(start + block, n). The "
        "machine refuses rows that are not there.",
        "padded": "Keys of zeros have the score 0, and exp(0 - m) is a weight. Load the rows that exist and no "
        "others, or set the padded scores to -inf.",
        "not_shifted": "exp(1000) is infinite. Every exponent must be a score minus a max, at most 0.",
        "tile_max": "The running max never falls: it is the larger of the old one and the tile's. Measured from a "
        "tile's own max, alpha = exp(m_old - m_new) can exceed every number there is.",
        "start": "0 is larger than every one of these scores, so a max that starts at 0 never meets them and their "
        "exponentials vanish. What is the largest of no scores?",
        "causal": "Causal: query i sees no key after i + n_k - n_q. Positions count from the beginning of the "
        "sequence, not of the tile.",
        "off_by_one": "Query i sees key i + n_k - n_q itself, and no later one: hidden is key > query + n_k - n_q, "
        "and a slice of keys that ends with it stops one beyond.",
        "mask_value": "A score of 0 has the weight exp(0 - m), which is not 0. Only -inf has none.",
        "offset": "The last query sees the last key: query i sees keys 0 to i + n_k - n_q, in the mask and in the end "
        "of the inner loop.",
        "nothing_seen": "The first n_q - n_k queries see no key. Their max stays -inf: subtract 0 instead of it, "
        "divide by 1 instead of an l of 0, and store the zeros, in O's dtype.",
        "precision": "float16 holds about 3 decimal digits, and every step rounds again. Tiles have the dtype of what "
        "they were loaded from: make q float32 before the product (astype), and keep m, l and acc in float32.",
        "behind": "A handle's values are reached with machine.load, a tile's by computing with the tile. The "
        "underscore marks the machine's own affairs.",
        "finished": "That is the course's solution at work, not yours. Your own online_softmax_update of lesson 05 "
        "may be copied into the cell.",
        "peak": "Read in the message what lies in SRAM. Tiles of earlier rounds? Something keeps them: a list, or a "
        "name; use del or machine.free. One that has n rows or columns? Then a tile is no tile.",
        "write_once": "acc stays in SRAM until its last key tile has passed; store once, after the inner loop.",
        "again": "Count the loads of your inner loop: one of K and one of V for each pair of tiles. A second look at "
        "K, for a max or a sum, is what alpha makes superfluous; Q is loaded in the outer loop.",
        "hbm": "Scores and statistics live in SRAM and die there. Whatever is put in HBM is written and read back.",
        "skip": "Which is the last key that the last query of the tile sees? Beyond it nothing is worth loading: let "
        "the inner loop end at min(max(q_stop + n_k - n_q, 0), n_k).",
    },
    common_hints=SHARED_HINTS | {": nan": "masked", ": unwritten": "unwritten"},
    wrong_answers=(
        *caught_by(
            "one tile that holds everything gives softmax(Q K^T / sqrt(d)) V",
            WrongAnswer("final division missing", "divide", {"acc / np.where(l == 0, 1.0, l)[:, None]": "acc"}),
        ),
        *caught_by(
            "tiles of keys that leave the max alone",
            WrongAnswer(
                "each tile measured from its own max",
                "own_max",
                {"p = np.exp(s - shift[:, None])": "p = np.exp(s - s.max(axis=1)[:, None])"},
            ),
        ),
        *caught_by(
            "tiles of keys that raise the max, each of them",
            WrongAnswer("no rescale of l", "rescale_l", {"l = alpha * l": "l = l"}),
            WrongAnswer("no rescale of acc", "rescale_acc", {"acc = alpha[:, None] * acc": "acc = acc"}),
            WrongAnswer(
                "alpha upside down",
                "upside_down",
                {"alpha = np.exp(m - shift)": "alpha = np.exp(np.where(m == -np.inf, 0.0, shift - m))"},
            ),
        ),
        *caught_by(
            "any lengths and any tiles: the last ones may be short",
            WrongAnswer(
                "last tile of keys dropped",
                "tail",
                {"range(0, kv_end, block_k)": "range(0, kv_end // block_k * block_k or kv_end, block_k)"},
            ),
            WrongAnswer(
                "short tile padded with zero keys",
                "padded",
                {
                    "            s = q @ k.T": (
                        "            rest = block_k - len(k)\n"
                        "            k, v = (np.concatenate([t, np.zeros((rest, d), t.dtype)]) for t in (k, v))\n"
                        "            k_stop = k_start + block_k\n"
                        "            s = q @ k.T"
                    )
                },
            ),
        ),
        *caught_by(
            "scores near 1000 do not overflow",
            WrongAnswer(
                "no max subtraction",
                "not_shifted",
                {"0.0, m_new)": "0.0, 0.0)", "alpha = np.exp(m - shift)": "alpha = np.exp(shift)"},
            ),
        ),
        *caught_by(
            "the max falls by 1000 from one tile of keys to the next",
            WrongAnswer(
                "tile max for running max",
                "tile_max",
                {"m_new = np.maximum(m, s.max(axis=1))": "m_new = s.max(axis=1)"},
            ),
        ),
        *caught_by(
            "all scores strongly negative",
            WrongAnswer(
                "running max starts at 0", "start", {"machine.full(len(q), -np.inf)": "machine.full(len(q), 0.0)"}
            ),
        ),
        *caught_by(
            "causal, as many queries as keys: query i sees keys 0 to i",
            WrongAnswer(
                "causal ignored",
                "causal",
                {"if causal else n_k": "if False else n_k", "if causal:": "if False:"},
            ),
            WrongAnswer(
                "sees the next key",
                "off_by_one",
                {
                    "(k_start, k_stop) > visible": "(k_start, k_stop) > visible + 1",
                    "min(max(q_stop + n_k": "min(max(q_stop + 1 + n_k",
                },
            ),
            WrongAnswer(
                "does not see its own key",
                "off_by_one",
                {"(k_start, k_stop) > visible": "(k_start, k_stop) >= visible"},
            ),
            WrongAnswer(
                "hidden scores set to 0",
                "mask_value",
                {"visible] = -np.inf": "visible] = 0.0", "if causal else n_k": "if False else n_k"},
            ),
        ),
        *caught_by(
            "causal, more keys than queries: the last query sees the last key",
            WrongAnswer(
                "aligned at the top left",
                "offset",
                {"[:, None] + n_k - n_q": "[:, None]", "max(q_stop + n_k - n_q, 0)": "q_stop"},
            ),
        ),
        *caught_by(
            "causal, more queries than keys: a query that sees no key gets 0, never NaN",
            WrongAnswer("-inf minus -inf", "nothing_seen", {"np.where(m_new == -np.inf, 0.0, m_new)": "m_new"}),
        ),
        *caught_by(
            "float16 comes in and goes out, and rounds once",
            WrongAnswer(
                "float16 accumulation",
                "precision",
                {"            m = m_new\n": "            m, acc = m_new, acc.astype(O.dtype)\n"},
            ),
        ),
        *caught_by(
            "all the work is the answer's own, on tiles that it loaded",
            WrongAnswer("calls the finished implementation", "finished", function=lambda *a: _finished(*a)),
            WrongAnswer("reads the arrays behind the machine's back", "behind", function=lambda *a: _behind(*a)),
        ),
        *caught_by(
            "SRAM never holds more than 16 (block_q d + 2 block_k d + block_q block_k) bytes",
            WrongAnswer("the N x N matrix in SRAM", "peak", function=lambda *a: _all_scores(*a)),
            WrongAnswer(
                "tiles kept alive in a list",
                "peak",
                {"        kv_end =": "        kept = []\n        kv_end =", "del k, v, s, p": "kept += [k, v, p]"},
            ),
        ),
        *caught_by(
            "Q read once, O written once, K and V read once for every query tile",
            WrongAnswer(
                "K and V loaded twice",
                "again",
                {
                    "            s = q @ k.T": (
                        "            k, v = (machine.load(t, (k_start, k_stop)) for t in (K, V))\n"
                        "            s = q @ k.T"
                    )
                },
            ),
            WrongAnswer(
                "O written at every step",
                "write_once",
                {
                    "            del k, v, s, p": (
                        "            del k, v, s, p\n"
                        "            machine.store(O, (q_start, q_stop), acc.astype(O.dtype))"
                    )
                },
            ),
        ),
        *caught_by(
            "causal: tiles that no query of the tile sees are not read",
            WrongAnswer("hidden tiles not skipped", "skip", {"if causal else n_k": "if False else n_k"}),
        ),
    ),
    right_answers=(
        Variant("divided at every step, tiles freed by hand", function=lambda *a: _tiled_divided_each_step(*a)),
        Variant("exp2 and np.where, everything converted on loading", function=lambda *a: _tiled_exp2(*a)),
    ),
)


def _finished(machine, Q, K, V, O, block_q, block_k, causal=False):
    tiled_attention_on_machine(machine, Q, K, V, O, block_q=block_q, block_k=block_k, causal=causal)


def _behind(machine, Q, K, V, O, block_q, block_k, causal=False):
    q, k, v = (handle._array.astype(np.float64) for handle in (Q, K, V))
    out = reference.attention(q, k, v, causal=causal)
    for start in range(0, len(q), block_q):
        tile = machine.full((len(out[start : start + block_q]), q.shape[1]), 0.0, O.dtype)
        machine.store(O, (start, start + len(tile)), tile)
    O._array[:] = out


def _all_scores(machine, Q, K, V, O, block_q, block_k, causal=False):
    n_q, n_k = len(Q), len(K)
    q, k, v = (machine.load(handle, (0, len(handle))).astype(np.float32) for handle in (Q, K, V))
    s = q @ k.T * Q.shape[1] ** -0.5
    if causal:
        s[np.arange(n_k) > np.arange(n_q)[:, None] + n_k - n_q] = -np.inf
    m = s.max(axis=1)
    p = np.exp(s - np.where(m == -np.inf, 0.0, m)[:, None])
    l = p.sum(axis=1)
    machine.store(O, (0, n_q), (p @ v / np.where(l == 0, 1.0, l)[:, None]).astype(O.dtype))


def _tiled_divided_each_step(machine, Q, K, V, O, block_q, block_k, causal=False):
    n_q, n_k, d = len(Q), len(K), Q.shape[1]
    for start in range(0, n_q, block_q):
        rows = slice(start, min(start + block_q, n_q))
        q = machine.load(Q, rows)
        m, l, out = machine.full((len(q), 1), -np.inf), machine.full((len(q), 1), 0), machine.full((len(q), d), 0)
        for first in range(0, n_k, block_k):
            if causal and first > rows.stop - 1 + n_k - n_q:
                break
            keys = slice(first, min(first + block_k, n_k))
            k = machine.load(K, keys)
            s = np.matmul(q, k.T, dtype=np.float32) / np.float32(d**0.5)
            machine.free(k)
            if causal:
                seen = np.arange(keys.start, keys.stop) <= np.arange(rows.start, rows.stop)[:, None] + n_k - n_q
                s = np.where(seen, s, np.float32(-np.inf))
            new = np.maximum(m, s.max(axis=1, keepdims=True))
            safe = np.where(np.isfinite(new), new, np.float32(0))
            p = np.exp(s - safe)
            machine.free(s)
            old = np.exp(m - safe) * l
            l, m = old + p.sum(axis=1, keepdims=True), new
            v = machine.load(V, keys)
            out = (old * out + np.matmul(p, v, dtype=np.float32)) / np.maximum(l, np.float32(1e-30))
            machine.free(v)
            machine.free(p)
        machine.store(O, rows, out.astype(O.dtype))


def _tiled_exp2(machine, Q, K, V, O, block_q, block_k, causal=False):
    n_q, n_k, d = len(Q), len(K), Q.shape[1]
    scale = float(np.log2(np.e) / np.sqrt(d))
    for i in range(-(-n_q // block_q)):
        q_rows = i * block_q, min((i + 1) * block_q, n_q)
        q = machine.load(Q, q_rows).astype(np.float32) * scale
        m, l = machine.full(len(q), -np.inf), machine.full(len(q), 0)
        acc = machine.full((len(q), d), 0)
        end = max(min(n_k, q_rows[1] + n_k - n_q), 0) if causal else n_k
        for j in range(-(-end // block_k)):
            k_rows = j * block_k, min((j + 1) * block_k, n_k)
            k, v = (machine.load(handle, k_rows).astype(np.float32) for handle in (K, V))
            s = q @ k.T
            if causal:
                hidden = np.arange(*q_rows)[:, None] + n_k - n_q < np.arange(*k_rows)
                s = np.where(hidden, np.float32(-np.inf), s)
            m_old, m = m, np.maximum(m, s.max(axis=1))
            shift = np.where(m > -np.inf, m, np.float32(0))
            s = np.exp2(s - shift[:, None])
            l = np.exp2(m_old - shift) * l + s.sum(axis=1)
            acc = np.exp2(m_old - shift)[:, None] * acc + s @ v
        machine.store(O, q_rows, (acc / np.where(l > 0, l, np.float32(1))[:, None]).astype(O.dtype))


EXERCISES = (CHOOSE, TILES, ATTENTION, BYTES)


def _option(answer, correct, feedback):
    return {"answer": answer, "correct": correct, "feedback": feedback}


QUIZ = [
    {
        "question": "N doubles, everything else stays. By how much do the bytes grow that FlashAttention (queries "
        "outermost) reads and writes, for large N?",
        "type": "multiple_choice",
        "answers": [
            _option("Twofold: that is the point of it", False, "The memory held grows so. The traffic does not."),
            _option("Not at all: K and V stay in SRAM", False, "SRAM holds one tile of each."),
            _option("Almost fourfold", True, "Twice as many query tiles, each reading twice as many keys."),
        ],
    },
    {
        "question": "A paper says B_c = M / 4d, with M = 100 KB of SRAM and fp16. What is M in that formula?",
        "type": "multiple_choice",
        "answers": [
            _option("About 50 thousand elements", True, "The papers count elements; each takes 2 bytes."),
            _option("About 100 thousand bytes", False, "Tiles of that size need more than twice what there is."),
            _option("The L2 cache of the whole GPU", False, "A program's tiles lie in its own multiprocessor."),
        ],
    },
    {
        "question": "Which of the two loop orders writes each row of O exactly once?",
        "type": "multiple_choice",
        "answers": [
            _option("Keys outermost (FlashAttention-1)", False, "It brings O back for every tile of keys."),
            _option("Queries outermost (FlashAttention-2)", True, "The tile's acc stays in SRAM until it is done."),
            _option("Both", False, "With keys outermost a row is unfinished until the last key tile."),
            _option("Neither", False, "One of them keeps acc in SRAM until the row is done."),
        ],
    },
    {
        "question": "Causal, N queries and keys, square tiles, many of them. Which part of the tiles is skipped?",
        "type": "multiple_choice",
        "answers": [
            _option(
                "None: a mask hides, it does not skip", False, "Standard attention does that. Tiles can be skipped."
            ),
            _option("All that the diagonal crosses", False, "Those hold visible scores and must be computed."),
            _option("A little less than half", True, "All above the diagonal; those on it are still visited."),
        ],
    },
    {
        "question": "At block_q of about d / 2 FlashAttention's byte count equals that of standard attention. What is "
        "then still better?",
        "type": "multiple_choice",
        "answers": [
            _option("It does fewer FLOPs", False, "The same 4 N N d, and the rescaling on top."),
            _option("It holds no N x N matrix in HBM", True, "Memory beyond Q, K, V, O does not grow with N squared."),
            _option("It approximates, so it needs fewer keys", False, "It is exact, up to rounding."),
        ],
    },
]
