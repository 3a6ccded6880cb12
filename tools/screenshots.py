"""What a reader sees: `python -m tools.screenshots NOTEBOOK OUTDIR`.

Runs a copy of NOTEBOOK in JupyterLab in headless Chromium and writes a picture of every cell, in the light and in
the dark theme: OUTDIR/light/003_code.png is the fourth cell. Needs chromium on the path.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.browser import lab

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Save a picture of every cell, run in JupyterLab.")
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    parser.add_argument("outdir", type=Path, metavar="OUTDIR")
    arguments = parser.parse_args()
    if not lab.CHROMIUM:
        sys.exit("no chromium, chromium-browser or google-chrome on the path")

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "notebooks"
        folder.mkdir()
        lab.copy_not_executed(arguments.notebook, folder)
        with lab.jupyterlab(folder, Path(scratch)) as address, lab.chromium() as browser:
            page = browser.new_page()
            lab.open_notebook(page, address, arguments.notebook.name)
            lab.run_all(page)
            for theme, name in THEMES.items():
                photograph(page, name, arguments.outdir / theme)


def photograph(page, theme: str, outdir: Path) -> None:
    """Writes a picture of every cell of the open notebook, in `theme`, to `outdir`."""
    outdir.mkdir(parents=True, exist_ok=True)
    page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    page.locator(f'body[data-jp-theme-name="{theme}"]').wait_for(state="attached")
    page.wait_for_timeout(500)  # the theme's colours fade in
    for number, cell in enumerate(page.locator(".jp-Notebook .jp-Cell").all()):
        kind = "markdown" if "jp-MarkdownCell" in cell.get_attribute("class") else "code"
        cell.screenshot(path=outdir / f"{number:03}_{kind}.png")


if __name__ == "__main__":
    main()
