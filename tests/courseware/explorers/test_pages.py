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
    for step in explorer.run(*chosen):
        for request, table in step.log.pages.items():
            stored = "".join(step.held[page] for page in table)
            # A shared page may hold more of somebody else's text, but only at its own end.
            assert stored[: step.log.lengths[request]] == step.texts[request][: step.log.lengths[request]]
            assert all(request in step.owners[page] for page in table)
        assert [len(who) for who in step.owners] == step.log.references


def test_neither_pages_nor_sharing_nor_a_small_pool_changes_a_text():
    runs = [explorer.run(*chosen) for chosen in RUNS]
    final = {of[-1].texts for of in runs}
    assert final == {tuple(explorer.final_texts())} and max(map(len, runs)) == explorer.STEPS[-1]


def test_the_log_is_that_of_a_server_that_computes():
    """The explorer replays texts, whose characters the model writes whatever pages they lie in."""
    server = Server(model.load(), n_pages=6, page_size=16, attention=gathered)
    while len(server.log) <= explorer.REQUESTS[-1][0] or server.waiting or server.running:
        for arrives, prompt, n_new in explorer.REQUESTS:
            if arrives == len(server.log):
                server.submit(explorer.BEGINNING + prompt, n_new)
        server.step()
    assert server.log == [step.log for step in explorer.run(16, 96, True)]


@pytest.mark.parametrize("step", (8, 20))
def test_the_page_shows_every_page_with_its_text_and_its_requests_and_counts_them(step):
    steps, page = explorer.run(16, 192, True), explorer.page(step=step, page_size=16, pool_rows=192, shares=True)
    of = steps[step - 1]
    used, n_stored = sum(count > 0 for count in of.log.references), sum(map(len, of.held))
    assert f"Step {step} of {len(steps)}" in page.text and f"{used} of 12 pages" in page.text
    assert f"with {n_stored} tokens and {16 * used - n_stored} empty rows" in page.text
    assert all(of.texts[request] in page.text for request in of.log.pages)
    for number, (text, who) in enumerate(zip(of.held, of.owners, strict=True)):
        names = ", ".join(explorer.NAMES[r] for r in who)
        assert f">{number}: {names}<" in page.html() if who else f">{number}<" in page.html()
        tip = f"page {number} of {names}: {text!r}" if who else f"page {number} is free"
        assert tips(page).count(tip) == (len(text) > 0) + (len(text) < 16), "what it holds, and what is empty"
