"""The pages of a pool: what is shown is the server's log, and the words and the picture are what is shown."""

import pytest
import torch

from course_lib.kernels import decode, flash_decode
from courseware.explorers import pages as explorer

RUNS = [(4, 128, True), (16, 96, True), (16, 192, True), (16, 192, False), (32, 96, False)]


@pytest.mark.parametrize("chosen", RUNS, ids=str)
def test_a_request_s_text_is_read_back_from_its_pages(chosen):
    of = explorer.run(*chosen)
    for step, now in enumerate(of.steps):
        held, owners = of.characters(step), of.owners(step)
        for request, table in now.pages.items():
            stored = "".join(held[page] for page in table)
            # A shared page may hold more of somebody else's text, but only at its own end.
            assert stored[: now.lengths[request]] == of.texts[step][request][: now.lengths[request]]
            assert all(request in owners[page] for page in table)
        assert [len(who) for who in owners] == now.references


def test_neither_pages_nor_sharing_nor_a_small_pool_changes_a_text():
    final = {explorer.run(*chosen).texts[-1] for chosen in RUNS}
    assert len(final) == 1
    for text, (_, prompt, n_new) in zip(*final, explorer.REQUESTS, strict=True):
        assert text.startswith(explorer.BEGINNING + prompt)
        assert len(text) == len(explorer.BEGINNING + prompt) + n_new


def test_the_explorer_s_attention_is_flash_decode():
    q, cache = torch.randn(2, 4, 3, 32), torch.randn(2, 6, 2, 16, 32)
    lengths, table = torch.tensor([21, 5], dtype=torch.int32), torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    # The kernel knows every sequence's length; the explorer's attention leaves the table's rows behind it out.
    ours = explorer.attention(q, *cache, lengths, block_table=table)
    torch.testing.assert_close(ours, flash_decode(q, *cache, lengths, block_table=table))


def test_what_the_lesson_says_of_the_explorer():
    steps = explorer.run(16, 192, True).steps
    assert steps[7].references[0] == 4 and all(count < 2 for count in steps[7].references[1:])
    assert [(i + 1, step.copies) for i, step in enumerate(steps) if step.copies] == [(4, [(1, 3)])]
    assert not any(n for step in explorer.run(32, 192, True).steps for n in step.admitted.values())
    preempted = [(i + 1, step.preempted) for i, step in enumerate(explorer.run(16, 96, True).steps) if step.preempted]
    assert preempted[0] == (12, [explorer.NAMES.index("D")])
    waiting = {r for step in explorer.run(16, 192, False).steps for r in step.waiting}
    assert waiting == {explorer.NAMES.index("E")}
    assert not any(step.waiting for step in explorer.run(16, 256, False).steps)


def test_the_words_are_the_counts():
    of = explorer.run(16, 192, True)
    now = of.steps[7]
    text = explorer.describe(of, 8)
    used = sum(count > 0 for count in now.references)
    assert f"Step 8 of {of.n_steps}" in text and f"{used} of 12 pages" in text
    n_stored = sum(map(len, of.characters(7)))
    assert f"with {n_stored} tokens and {16 * used - n_stored} empty rows" in text
    assert all(of.texts[7][request] in text for request in now.pages)
    assert explorer.describe(of, of.n_steps + 5) == explorer.describe(of, of.n_steps), "a step behind the last one"


def test_the_picture_shows_every_page_with_its_text_and_its_requests():
    of = explorer.run(16, 192, True)
    figure = explorer.draw(of, 20)
    texts = [text.get_text() for text in figure.axes[0].texts]
    for page, (held, who) in enumerate(zip(of.characters(19), of.owners(19), strict=True)):
        names = ", ".join(explorer.NAMES[r] for r in who)
        assert (f"{page}: {names}" if who else str(page)) in texts
        if who:
            assert " ".join(held.replace("\n", explorer.LINE_END)) in texts
            assert f"page {page} of {names}: {held!r}" in figure.alt
    assert not any("\n" in text for text in texts), "a second line of text would move the first off its cells"


def test_the_curves_of_the_splits_are_the_host_s_estimate():
    figure = explorer.draw_programs({"few": (8, 64), "many": (128, 64)}, 132)
    curve, dot, *_ = figure.axes[0].lines
    assert curve.get_ydata()[4] == decode.tiles_of_a_slot(8, 64, 132, 5)
    assert dot.get_xdata()[0] == decode.splits(8, 64, 132) == 16 and "6 with 16" in figure.alt
