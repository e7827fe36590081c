"""How large and how quick report pages are: `python benchmarks/report_page.py`.

Prints what it takes to write the page of a run, how large it is, and in an installed Chromium how long it takes from
opening the file until the page is drawn, and from a key press until the next step is shown. Times are medians, beside
the slowest step change. Aims: 300 kB for a typical scenario, 2 s to load and 100 ms to change the step with 10,000
events.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser

from fencepost.harness.trace import Trace
from fencepost.reports.html import run_page
from fencepost.tests.fix_browser import MISSING, browser_path, running_browser
from fencepost.tests.report_traces import broken, long

LOADS = 5
STEP_CHANGES = 20

# Two frames: what the key changed has been laid out and painted when the second begins.
CHANGE_STEP = """(key) => new Promise((done) => {
  const began = performance.now();
  document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
})"""


def main() -> int:
    path = browser_path()
    print(
        f"{'run':24} {'steps':>6} {'to write':>9} {'page':>9} {'to load':>9} {'step change':>12} {'slowest':>9}"
    )
    if path is None:
        print(MISSING)
        return 1
    with running_browser(path) as browser, tempfile.TemporaryDirectory() as folder:
        for name, trace in (
            ("a typical scenario", broken()),
            ("1,000 events", long(1_000)),
            ("10,000 events", long(10_000)),
        ):
            measure(browser, Path(folder), name, trace)
    return 0


def measure(browser: Browser, folder: Path, name: str, trace: Trace) -> None:
    began = time.perf_counter()
    text = run_page(trace)
    wrote_s = time.perf_counter() - began
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    loads, changes = [], []
    for _ in range(LOADS):
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        began = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector(".row[aria-selected=true]")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        loads.append(time.perf_counter() - began)
        page.keyboard.press("Home")
        changes += [page.evaluate(CHANGE_STEP, "j") for _ in range(STEP_CHANGES)]
        changes += [page.evaluate(CHANGE_STEP, key) for key in ("End", "Home", "f")]
        page.close()
    size_kb = len(text.encode()) / 1000
    load_s, change_ms = statistics.median(loads), statistics.median(changes)
    print(
        f"{name:24} {len(trace.steps):6} {wrote_s:7.2f} s {size_kb:6.0f} kB {load_s:7.2f} s "
        f"{change_ms:9.0f} ms {max(changes):6.0f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
