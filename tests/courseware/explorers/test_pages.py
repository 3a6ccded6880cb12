"""The pages of a pool: what is shown is the server's log, and the words and the picture are what is shown."""

import pytest

from course_lib.serving import model
from course_lib.serving.server import Server
from courseware.explorers import pages as explorer
from tests.course_lib.serving.test_server import gathered

from .conftest import tips

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
    assert len(final) == 1 and max(len(explorer.run(*chosen).steps) for chosen in RUNS) == explorer.STEPS[-1]
    for text, (_, prompt, n_new) in zip(*final, explorer.REQUESTS, strict=True):
        assert text.startswith(explorer.BEGINNING + prompt)
        assert len(text) == len(explorer.BEGINNING + prompt) + n_new


def test_the_log_is_that_of_a_server_that_computes():
    """The explorer replays texts, whose characters the model writes whatever pages they lie in."""
    server = Server(model.load(), n_pages=6, page_size=16, attention=gathered)
    while len(server.log) <= explorer.REQUESTS[-1][0] or server.waiting or server.running:
        for arrives, prompt, n_new in explorer.REQUESTS:
            if arrives == len(server.log):
                server.submit(explorer.BEGINNING + prompt, n_new)
        server.step()
    assert tuple(server.log) == explorer.run(16, 96, True).steps


@pytest.mark.parametrize("step", (8, 20))
def test_the_page_shows_every_page_with_its_text_and_its_requests_and_counts_them(step):
    of = explorer.run(16, 192, True)
    now, held, owners = of.steps[step - 1], of.characters(step - 1), of.owners(step - 1)
    page = explorer.page(step=step, page_size=16, pool_rows=192, shares=True)
    used, n_stored = sum(count > 0 for count in now.references), sum(map(len, held))
    assert f"Step {step} of {len(of.steps)}" in page.text and f"{used} of 12 pages" in page.text
    assert f"with {n_stored} tokens and {16 * used - n_stored} empty rows" in page.text
    assert all(of.texts[step - 1][request] in page.text for request in now.pages)
    for number, (text, who) in enumerate(zip(held, owners, strict=True)):
        names = ", ".join(explorer.NAMES[r] for r in who)
        assert f">{number}: {names}<" in page.html() if who else f">{number}<" in page.html()
        tip = f"page {number} of {names}: {text!r}" if who else f"page {number} is free"
        assert tips(page).count(tip) == (len(text) > 0) + (len(text) < 16), "what it holds, and what is empty"
