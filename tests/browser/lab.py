"""A notebook in JupyterLab or Voila, in headless Chromium, as a reader has it on the screen."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import nbformat

from tools import authoring

START_S = 60
RUN_S = 180

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

# Cells outside the window are drawn too, and nothing asks the network for news.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


def copy_not_executed(notebook: Path, folder: Path) -> None:
    """Copies `notebook` into `folder` without outputs and execution counts: a count seen later was made there."""
    copy = nbformat.read(notebook, as_version=4)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    nbformat.write(copy, folder / notebook.name)


@contextlib.contextmanager
def _served(scratch, *command, **environment):
    """Runs a Jupyter application, its own files in `scratch`. Yields its address, once its log says it."""
    folders = {f"JUPYTER_{kind}_DIR": str(scratch / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    environment = authoring.kernel_environment(scratch) | {"PYTHONPATH": str(authoring.ROOT)} | folders | environment
    log = scratch / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_S
        while not (said := re.search(r"running at:\s+(?:\[.*\] )?(http://localhost:\d+/)", log.read_text())):
            if time.monotonic() > deadline or server.poll() is not None:
                raise RuntimeError(f"{command[0]} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield said[1]
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()


@contextlib.contextmanager
def jupyterlab(folder: Path, scratch: Path):
    """JupyterLab on `folder`. Yields its address."""
    settings = scratch / "settings"
    for name, values in SETTINGS.items():
        path = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))

    with _served(
        scratch, "jupyterlab", "--no-browser", "--allow-root", "--IdentityProvider.token=",
        f"--ServerApp.root_dir={folder}", "--ServerApp.port=0", "--LabApp.expose_app_in_browser=True",
        JUPYTERLAB_SETTINGS_DIR=str(settings), JUPYTERLAB_WORKSPACES_DIR=str(scratch / "workspaces"),
    ) as url:  # fmt: skip
        yield url


@contextlib.contextmanager
def voila(notebook: Path, scratch: Path):
    """Voila serves `notebook` as a page, each visitor with a kernel of their own. Yields the page's address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _served(scratch, "voila", str(notebook), "--no-browser", f"--port={port}") as url:
        yield url


@contextlib.contextmanager
def chromium(scale=1):
    """A headless Chromium that was found on the path. Yields a Playwright browser context: `.new_page()`.

    scale: pixels of the screen to one of the page.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        # Tall, so that no cell is taller than the window.
        yield browser.new_context(viewport={"width": 1280, "height": 2400}, device_scale_factor=scale)
        browser.close()


def open_notebook(page, address: str, name: str) -> None:
    """Opens notebook `name` and returns when its kernel is ready.

    In a page that shows a notebook already, it takes that one's place and its kernel: a page and a kernel that has
    imported torch take seconds to start.
    """
    if page.url.startswith(address):
        page.evaluate(
            """async path => {
                const {commands, shell} = window.jupyterapp, before = shell.currentWidget
                const kernel = {id: before.sessionContext.session.kernel.id}
                before.dispose()
                await commands.execute("docmanager:open", {path, kernel})
            }""",
            name,
        )
    else:
        page.goto(f"{address}doc/tree/{name}?reset")
    # Not by the indicator in the toolbar, which says idle while there is no kernel yet.
    page.wait_for_function(
        """() => {
            const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel
            return kernel?.connectionStatus == "connected" && kernel.status == "idle"
        }""",
        timeout=START_S * 1000,
    )


def run_all(page) -> None:
    """Runs every cell from the menu. Raises AssertionError with what a cell wrote, if one raised or wrote to stderr."""
    page.bring_to_front()  # a page behind another opens no menus
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    error = ".jp-OutputArea [data-mime-type$='.error'], .jp-OutputArea [data-mime-type$='.stderr']"
    page.wait_for_function(
        # Not by the prompts, of which a folded cell has none.
        """error => document.querySelector(error)
            || jupyterapp.shell.currentWidget.content.widgets
                .every(cell => cell.model.type != "code" || cell.model.executionCount)""",
        arg=error,
        timeout=RUN_S * 1000,
    )
    wrong = page.locator(error)
    assert wrong.count() == 0, wrong.first.inner_text()
