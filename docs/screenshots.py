"""Takes the pictures of docs/images: `python docs/screenshots.py TRACES` (`make screenshots`).

TRACES is a folder as `make report` leaves it: traces of the reference queue and of a few twins. Needs an installed
Chromium and a PNG is written whole or not at all, so a picture that could not be taken leaves the old one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page

from fencepost.reports import html
from fencepost.tests.fix_browser import MISSING, browser_path, running_browser

IMAGES = Path(__file__).resolve().parent / "images"
RACE = "reference/lease_race-lease_race.jsonl"
HELD = "lease_race-held_between_guard_and_commit-after_guard.jsonl"
TWIN = "guard_without_row_lock"
WIDTH = 1180


def main() -> int:
    traces = Path(sys.argv[1])
    path = browser_path()
    if path is None:
        sys.stderr.write(f"{MISSING}\n")
        return 1
    IMAGES.mkdir(exist_ok=True)
    with running_browser(path) as browser, tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        html.write([traces / RACE], output=page)
        take(browser, page, "race.png", last="#diagram")
        html.write([traces / TWIN / HELD], output=page)
        take(browser, page, "twin.png", last="#diagram", scheme="dark")
        take(browser, page, "inspector.png", first=".work", last=".work")
        html.write([traces / TWIN / HELD], output=page, compare_with=traces / "reference" / HELD)
        take(browser, page, "comparison.png", first="#diagram", last="#comparison")
        index = html.write([traces], output=Path(folder) / "suite").path
        assert index is not None
        take(browser, index, "index.png", height=900)
    return 0


def take(
    browser: Browser,
    file: Path,
    name: str,
    *,
    first: str = "body",
    last: str | None = None,
    scheme: str = "light",
    height: int = 1000,
) -> None:
    """From the top of `first` to the bottom of `last`, or what a window of that height shows."""
    page: Page = browser.new_page(
        viewport={"width": WIDTH, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page.goto(file.as_uri())
    if last is None:
        page.screenshot(path=IMAGES / name)
    else:
        top, bottom = page.locator(first).bounding_box(), page.locator(last).bounding_box()
        assert top is not None
        assert bottom is not None
        clip = {
            "x": 0.0,
            "y": top["y"],
            "width": WIDTH,
            "height": bottom["y"] + bottom["height"] - top["y"] + 10,
        }
        page.screenshot(path=IMAGES / name, full_page=True, clip=clip)  # type: ignore[arg-type]
    page.close()
    sys.stdout.write(f"docs/images/{name}: {(IMAGES / name).stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    sys.exit(main())
