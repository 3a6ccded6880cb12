"""The course as pages, built once as `make site` does and read on a phone: complete, offline, legible."""

import re
import subprocess
import sys
from urllib.parse import urldefrag

import pytest

from courseware.checks import registry
from tests.browser import lab
from tests.courseware.explorers.conftest import every_explorer
from tools import authoring

pytestmark = pytest.mark.skipif(not lab.CHROMIUM, reason="no chromium or google-chrome on the path")

ROOT = authoring.ROOT
LESSONS = [f"notebooks/{path.stem}" for path in sorted(authoring.NOTEBOOKS.glob("[0-9]*.ipynb"))]
OTHERS = ["notebooks/glossary", "notebooks/block_size_explorer"]
OTHERS += [f"docs/{name}" for name in ("from_other_libraries", "tested", "instructors", "maintainers")]
PAGES = ["index", "README", *LESSONS, *OTHERS]

# What a browser finds on a page: faults are texts, links are addresses.
LOOK = r"""async () => {
    await window.MathJax?.startup?.promise
    for (const image of document.images) await image.decode().catch(() => 0)
    const all = selector => [...document.querySelectorAll(selector)]
    const faults = all("img").filter(image => !image.naturalWidth).map(image => `no picture: ${image.src}`)
    faults.push(...all("mjx-merror, [data-mjx-error]").map(error => `formula: ${error.textContent}`))
    const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT)
    while (texts.nextNode()) {
        const {data, parentElement} = texts.currentNode
        if (parentElement.closest("pre, code, script, style, mjx-container")) continue
        if (/\$|\\[a-zA-Z(\[]/.test(data)) faults.push(`raw formula: ${data.trim()}`)
    }
    for (const part of all("html, .page, .main, .content"))
        if (part.scrollWidth > part.clientWidth) faults.push(`${part.tagName} is ${part.scrollWidth} pixels wide`)
    const address = (node, name) => new URL(node.getAttribute(name), document.baseURI).href
    return {
        faults,
        links: [...all("[href]").map(node => address(node, "href")), ...all("[src]").map(node => address(node, "src"))],
        navigation: all(".sidebar-tree a").map(link => link.href.split("#")[0]),
        ids: all("[id]").map(node => node.id),
        solutions: all("article summary").filter(summary => summary.textContent == "Solution").length,
    }
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the pages."""
    folder = tmp_path_factory.mktemp("site")
    options = "--quiet --fail-on-warning --keep-going -c site".split()
    command = [sys.executable, "-m", "sphinx", *options, "-d", folder / "doctrees", ".", folder / "html"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def phone(browser):
    page = browser.new_page()
    page.set_viewport_size({"width": 390, "height": 844})
    return page


@pytest.fixture(scope="module")
def looked(site, phone):
    """Address -> what LOOK finds on each of PAGES, and what was asked for and complained of."""
    requests, complaints = [], []
    phone.on("request", lambda request: requests.append(request.url))
    phone.on("console", lambda message: message.type == "error" and complaints.append(message.text))
    phone.on("pageerror", lambda error: complaints.append(error.message))
    found = {}
    for name in PAGES:
        page = address(site, name)
        phone.goto(page)
        found[page] = phone.evaluate(LOOK)
        found[page]["explorers"] = phone.locator("div.explorer .pages").count()
        found[page] |= {"requests": [*requests], "complaints": [*complaints]}
        requests.clear()
        complaints.clear()
    return found


def address(site, name):
    return (site / f"{name}.html").as_uri()


def all_of(looked, what):
    return [f"{page.split('/')[-1]}: {item}" for page, found in looked.items() for item in found[what]]


def test_nothing_is_missing_raw_or_too_wide(looked):
    assert all_of(looked, "faults") == []


def test_no_page_asks_another_server_or_complains(looked):
    assert [item for item in all_of(looked, "requests") if "file://" not in item and " data:" not in item] == []
    assert all_of(looked, "complaints") == []


def test_every_exercise_has_its_solution_below(site, looked):
    solutions = {name: looked[address(site, name)]["solutions"] for name in LESSONS}
    assert solutions == {name: len(registry.of_lesson(name.split("/")[1][:2])) for name in LESSONS}


def test_every_explorer_is_there(looked):
    # That of block sizes is on two pages.
    assert sum(found["explorers"] for found in looked.values()) > len(every_explorer())


def test_links_inside_the_site_lead_somewhere(site, looked):
    broken = []
    for page, found in looked.items():
        for link in found["links"]:
            target, anchor = urldefrag(link)
            if not target.startswith("file:"):
                continue
            file = site / target.removeprefix(f"{site.as_uri()}/").split("?")[0]
            if not file.is_file() or (anchor and target in looked and anchor not in looked[target]["ids"]):
                broken.append(f"{page.split('/')[-1]}: {link}")
    assert broken == []


def test_navigation_has_every_page_in_order(site, looked):
    expected = [address(site, name) for name in PAGES[2:]]
    assert all(found["navigation"] == expected for found in looked.values())


def test_every_lesson_links_to_the_glossary_and_once_published_to_colab(site, looked):
    for name in LESSONS:
        links = looked[address(site, name)]["links"]
        assert address(site, "notebooks/glossary") in links
        badge = authoring.badge(name.split("/")[1], authoring.repository())
        assert all(colab in links for colab in re.findall(r"https://colab[^)]*ipynb", badge))
