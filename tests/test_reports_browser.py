"""Report pages in a real browser: everything a reader does with them, and nothing they may do by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from fencepost.harness.trace import Trace, write_trace
from fencepost.reports import html
from fencepost.reports.compare import compare
from fencepost.tests.fix_browser import MISSING, Watched, browser_path, running_browser
from fencepost.tests.report_traces import Story, broken, everything, hostile, long, survived

pytestmark = pytest.mark.skipif(browser_path() is None, reason=MISSING)

WIDE = (1400, 1000)
NARROW = (400, 800)
DEADLINE_MS = 15_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = browser_path()
    assert path is not None
    with running_browser(path) as started:
        yield started


class Reader:
    """Opens pages, and holds against them every request and every complaint."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self._watched: list[Watched] = []

    def open(
        self,
        text: str,
        *,
        size: tuple[int, int] = WIDE,
        scheme: str = "light",
        anchor: str = "",
        name: str = "page.html",
    ) -> Page:
        file = self._folder / name
        file.write_bytes(text.encode("utf-8", errors="replace"))
        return self.visit(file, size=size, scheme=scheme, anchor=anchor)

    def visit(
        self, file: Path, *, size: tuple[int, int] = WIDE, scheme: str = "light", anchor: str = ""
    ) -> Page:
        width, height = size
        page = self._browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        page.set_default_timeout(DEADLINE_MS)
        self._watched.append(Watched.of(page))
        page.goto(file.as_uri() + anchor)
        return page

    def close(self) -> None:
        for watched in self._watched:
            watched.page.close()
            away = [url for url in watched.requests if not url.startswith(("file://", "data:"))]
            assert away == [], "the page asked for something outside itself"
            assert watched.complaints == []


@pytest.fixture
def reader(browser: Browser, tmp_path: Path) -> Iterator[Reader]:
    opened = Reader(browser, tmp_path)
    yield opened
    opened.close()


def chosen(page: Page) -> int:
    return int(page.locator(".row[aria-selected=true] .n").inner_text())


def compared() -> str:
    left, right = broken(), survived()
    return html.run_page(left, other=(right, compare(left, right)))


# -- head --------------------------------------------------------------------------------------------------


def test_the_head_tells_the_verdict_and_how_to_replay_it(reader: Reader) -> None:
    page = reader.open(html.run_page(broken()))
    expect(page.locator("#headline")).to_have_text(
        "fence broken at step 6: A wrote to the ledger under token 1 while 2 was current"
    )
    expect(page.locator(".head .verdict")).to_have_text("fail")
    expect(page.locator(".facts").first).to_contain_text("18.4 (embedded)")
    expect(page.locator(".facts").first).to_contain_text("by moving the server's clock")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#replay").inner_text()
    page.close()


# -- choosing a step ---------------------------------------------------------------------------------------


def test_the_page_opens_where_it_broke(reader: Reader) -> None:
    page = reader.open(html.run_page(broken()))
    assert chosen(page) == 6
    inspector = page.locator("#inspector")
    expect(inspector.locator(".alarm")).to_contain_text("fence broken: A wrote to the ledger under token 1")
    expect(inspector.locator(".ledger-entries .added")).to_have_text("+ job 1, token 1, A")
    assert inspector.locator("li.bad").all_inner_texts() == ["ledger_once broke", "fence broke"]


def test_a_deep_link_opens_its_step_and_follows_the_address(reader: Reader) -> None:
    page = reader.open(html.run_page(broken()), anchor="#step-2")
    assert chosen(page) == 2
    page.evaluate("location.hash = '#step-4'")
    expect(page.locator("#step-place")).to_contain_text("Step 4 of 6")
    page.locator(".row[data-n='5']").click()
    assert page.evaluate("location.hash") == "#step-5"
    page.evaluate("location.hash = '#step-9999'")
    expect(page.locator("#step-place")).to_contain_text("Step 6 of 6")


def test_keys_walk_through_the_steps(reader: Reader) -> None:
    page = reader.open(html.run_page(survived()), anchor="#step-1")
    walked = []
    for key in ("j", "ArrowDown", "ArrowRight", "k", "ArrowUp", "ArrowLeft", "k", "End", "j", "Home", "f"):
        page.keyboard.press(key)
        walked.append(chosen(page))
    assert walked == [2, 3, 4, 3, 2, 1, 1, 6, 6, 1, 6]
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("j")
    assert chosen(page) == 6, "a dialog in front keeps its keys to itself"
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()


def test_clicks_in_the_diagram_choose_steps(reader: Reader) -> None:
    page = reader.open(html.run_page(survived()))
    page.locator(".chart [data-step='2'] rect").first.click()
    assert chosen(page) == 2
    expect(page.locator("#inspector h2")).to_have_text("A: claim")


def test_rows_before_and_after_have_their_changed_cells_marked(reader: Reader) -> None:
    page = reader.open(html.run_page(survived()), anchor="#step-4")
    table = page.locator(".rows-table")
    changed = {
        row.locator("td").nth(0).inner_text(): (
            row.locator("td").nth(1).inner_text(),
            row.locator("td").nth(2).inner_text(),
        )
        for row in table.locator("tbody tr").all()
        if row.locator("td.changed").count()
    }
    assert set(changed) == {"token", "holder", "lease until", "attempts"}
    assert changed["token"] == ("1", "2")
    assert changed["holder"] == ("A", "B")
    expect(page.locator("[data-part='Leases now']")).to_contain_text(
        "job 1: B, token 2, live for another 59.99"
    )


def test_the_inspector_shows_sql_locks_source_and_checkpoints(reader: Reader) -> None:
    page = reader.open(html.run_page(everything()), anchor="#step-2")
    sql = page.locator("[data-part='SQL']")
    expect(sql).to_contain_text("SELECT id FROM jobs WHERE state = $1 FOR UPDATE SKIP LOCKED")
    expect(sql).to_contain_text("$1 = ready,  $2 = NULL")
    expect(sql).to_contain_text("statement 1 → SELECT 1, backend 4711")
    expect(sql).to_contain_text("statement 2 → lost")
    expect(page.locator(".source .here")).to_contain_text("12    a.claim(job)")
    page.keyboard.press("j")
    expect(page.locator("[data-part='Operation']")).to_contain_text("after_guard")
    page.keyboard.press("j")
    expect(page.locator("[data-part='Locks after this step']")).to_contain_text("transactionid")
    expect(page.locator("[data-part='Locks after this step'] strong")).to_have_text("waits for it")


# -- diagram -----------------------------------------------------------------------------------------------


def box(page: Page, selector: str) -> dict[str, float]:
    found = page.locator(selector).first.bounding_box()
    assert found is not None, selector
    return dict(found)


def test_lease_bars_end_where_the_clock_passes_them(reader: Reader) -> None:
    page = reader.open(html.run_page(survived()))
    stale, fresh = box(page, "[data-lease='1/1'] .live"), box(page, "[data-lease='1/2'] .live")
    claim, clock = box(page, ".chart [data-step='2'] rect"), box(page, ".chart [data-step='3'] rect")
    assert claim["x"] < stale["x"] < claim["x"] + claim["width"], "it starts in its claim"
    assert clock["x"] < stale["x"] + stale["width"] < clock["x"] + clock["width"] + 8, (
        "it ends in the clock's move"
    )
    assert fresh["x"] > stale["x"] + stale["width"]
    assert page.locator("[data-lease='1/1'] .past").count() == 1
    assert page.locator("[data-lease='1/2'] .unused").count() == 1
    fills = [
        page.locator(f"[data-lease='1/{token}'] .live").evaluate("bar => getComputedStyle(bar).fill")
        for token in (1, 2)
    ]
    assert fills[0] != fills[1], "each token has its colour"


@pytest.mark.parametrize("axis", ["time", "scale"])
def test_the_axis_of_time_gives_a_minute_more_room_than_a_moment(reader: Reader, axis: str) -> None:
    page = reader.open(html.run_page(survived()), anchor="#step-1")
    order = (
        box(page, ".chart [data-step='3'] .op")["width"] / box(page, ".chart [data-step='2'] .op")["width"]
    )
    page.click(f"[data-axis='{axis}']")
    expect(page.locator(f"[data-axis='{axis}']")).to_have_attribute("aria-pressed", "true")
    time = box(page, ".chart [data-step='3'] .op")["width"] / box(page, ".chart [data-step='2'] .op")["width"]
    assert abs(order - 1) < 0.05
    assert time > (2.5 if axis == "time" else 50)
    page.keyboard.press("o")
    expect(page.locator("[data-axis='" + {"time": "scale", "scale": "order"}[axis] + "']")).to_have_attribute(
        "aria-pressed", "true"
    )


def test_everything_of_the_diagram_is_drawn_where_it_happens(reader: Reader) -> None:
    page = reader.open(html.run_page(everything()))
    page.keyboard.press("0")
    arrow = box(page, "[data-arrow='A-B'] line")
    blocked = box(page, ".chart [data-step='4'] .op")
    assert blocked["x"] < arrow["x"] < blocked["x"] + blocked["width"] + 2
    assert page.locator(".chart .wait.held").count() == 1
    assert page.locator(".chart .wait.blocked").count() == 1
    assert page.locator(".chart .wait.cut").count() == 1
    assert page.locator(".chart .op.fault").count() == 2
    assert page.locator(".chart .op.clock").count() == 1


def test_a_stale_write_is_unmistakable_without_colour(reader: Reader) -> None:
    page = reader.open(html.run_page(broken()))
    words = page.locator(".chart text").all_text_contents()
    assert "fence broken here" in words
    assert any(word.startswith("STALE") for word in words)
    assert page.locator(".chart .op.stale.broken").count() == 1
    assert page.locator(".chart .cell-cross").count() == 2


def test_the_strip_has_a_row_per_invariant_that_was_spoken_of(reader: Reader) -> None:
    page = reader.open(html.run_page(broken()))
    rows = "[data-invariant='single_holder'].cell-idle"
    assert page.locator("[data-invariant='fence'].cell-broken").count() == 1
    assert page.locator(rows).count() == 0
    expect(page.locator("#left-out")).to_contain_text("invariants that held with nothing to judge")
    page.click("#idle-invariants")
    assert page.locator(rows).count() == 1


def test_zoom_and_pan(reader: Reader) -> None:
    page = reader.open(html.run_page(long(60)), anchor="#step-50")
    before = box(page, ".chart [data-step='50'] .op")
    page.click("#zoom-in")
    assert box(page, ".chart [data-step='50'] .op")["width"] > before["width"] * 1.3
    page.click("#zoom-fit")
    fitted = page.locator(".chart [data-step='3'] .op").first
    assert fitted.is_visible()
    page.keyboard.press("+")
    page.keyboard.press("+")
    x = box(page, ".chart [data-step='50'] .op")["x"]
    chart = box(page, ".chart")
    page.mouse.move(chart["x"] + 700, chart["y"] + 200)
    page.mouse.down()
    page.mouse.move(chart["x"] + 800, chart["y"] + 200, steps=4)
    page.mouse.up()
    page.wait_for_function(
        f"document.querySelector(\".chart [data-step='50'] .op\").getBoundingClientRect().x > {x + 60}"
    )
    assert chosen(page) != 1
    wide = box(page, ".chart [data-step='50'] .op")["width"]
    page.keyboard.down("Control")
    page.mouse.wheel(0, 300)
    page.keyboard.up("Control")
    page.wait_for_function(
        f"document.querySelector(\".chart [data-step='50'] .op\").getBoundingClientRect().width < {wide * 0.8}"
    )


# -- filter ------------------------------------------------------------------------------------------------


def numbers(page: Page) -> list[int]:
    return [int(text) for text in page.locator(".row .n").all_inner_texts()]


def test_steps_are_filtered_by_actor_job_event_and_text(reader: Reader) -> None:
    page = reader.open(html.run_page(survived()))
    page.locator("#actor-filter button", has_text="B").click()
    assert numbers(page) == [4, 5]
    expect(page.locator("#filter-count")).to_have_text("2 of 6 steps")
    assert page.locator(".chart g.dimmed").count() > 0
    page.click("#clear-filter")
    page.select_option("#event-filter", "late")
    assert numbers(page) == [6]
    page.select_option("#event-filter", "")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("token_mismatch")
    assert numbers(page) == [6]
    page.keyboard.press("Escape")
    assert numbers(page) == [1, 2, 3, 4, 5, 6]
    page.fill("#search", "no such thing")
    expect(page.locator("#list")).to_contain_text("No step fits the filter.")


def test_keys_walk_through_what_the_filter_leaves(reader: Reader) -> None:
    page = reader.open(html.run_page(long(60)), anchor="#step-1")
    page.select_option("#job-filter", "3")
    page.evaluate("document.activeElement.blur()")
    shown = numbers(page)
    assert 3 <= len(shown) < 60
    walked = []
    for _ in shown:
        page.keyboard.press("j")
        walked.append(chosen(page))
    assert walked == shown


# -- comparison --------------------------------------------------------------------------------------------


def test_two_runs_beside_each_other(reader: Reader) -> None:
    page = reader.open(compared())
    expect(page.locator("#divergence")).to_contain_text(
        "The first 5 steps are the same. Then broken_twin: step 6"
    )
    assert page.locator("#charts svg.chart").count() == 2
    assert page.locator(".aligned tr.splits").count() == 1
    expect(page.locator(".aligned tr.splits")).to_contain_text("refused: token_mismatch")
    assert page.locator(".chart .split").count() == 2
    upper = page.locator("svg.chart").nth(0).locator("[data-step='4'] .op").first.bounding_box()
    lower = page.locator("svg.chart").nth(1).locator("[data-step='4'] .op").first.bounding_box()
    assert upper is not None
    assert lower is not None
    assert abs(upper["x"] - lower["x"]) < 2, "the same step stands above itself"
    page.locator(".aligned tbody tr").nth(1).click()
    assert chosen(page) == 2


# -- themes, narrow screens, paper -------------------------------------------------------------------------


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def lightness(colour: str) -> float:
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 765


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_preference_and_the_switch(reader: Reader, scheme: str) -> None:
    page = reader.open(html.run_page(broken()), scheme=scheme, name=f"{scheme}.html")
    assert (lightness(background(page)) > 0.5) == (scheme == "light")
    page.click("#theme")
    assert (lightness(background(page)) > 0.5) == (scheme == "dark")
    page.reload()
    assert (lightness(background(page)) > 0.5) == (scheme == "dark"), "the choice is kept"
    page.keyboard.press("t")
    assert (lightness(background(page)) > 0.5) == (scheme == "light")
    page.evaluate("localStorage.clear()")


CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const e of document.querySelectorAll("main *:not(svg *)")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!e.getClientRects().length) continue;
    const [a, b] = [lum(parse(getComputedStyle(e).color)), lum(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push(`${ratio.toFixed(1)} ${e.className} ${e.textContent.slice(0, 30)}`);
  }
  return bad;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(reader: Reader, scheme: str) -> None:
    page = reader.open(compared(), scheme=scheme)
    assert page.evaluate(CONTRAST) == []


def test_a_narrow_screen_gets_the_list_first_and_no_sideways_scrolling(reader: Reader) -> None:
    page = reader.open(compared(), size=NARROW)
    assert box(page, "#list")["y"] < box(page, "#inspector")["y"] < box(page, "#diagram")["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    page.locator(".row[data-n='2']").click()
    expect(page.locator("#inspector h2")).to_have_text("A: claim")


def test_a_printed_page_has_every_step_and_no_controls(reader: Reader) -> None:
    page = reader.open(html.run_page(survived()), scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator("#search").is_visible()
    assert page.locator(".row").count() == 6
    assert lightness(background(page)) > 0.95
    assert page.evaluate(
        "document.getElementById('list').scrollHeight <= document.getElementById('list').clientHeight"
    )
    assert len(page.pdf()) > 10_000


# -- hostile text ------------------------------------------------------------------------------------------


def test_hostile_text_is_shown_and_does_nothing(reader: Reader) -> None:
    page = reader.open(html.run_page(hostile()))
    bad = "</script><img src=x onerror="
    title = page.title()
    for number in range(1, 6):
        page.evaluate(f"location.hash = '#step-{number}'")
        expect(page.locator("#step-place")).to_contain_text(f"Step {number} of 5")
        assert page.locator("main img, main b, main script").count() == 0
    assert bad in page.locator("#headline").inner_text()
    page.evaluate("location.hash = '#step-1'")
    expect(page.locator("[data-part='Operation']")).to_contain_text(bad)
    expect(page.locator("[data-part='Operation']")).to_contain_text("{{ 7*7 }}")
    assert page.locator("script").count() == 2, "the data and our own"
    assert page.title() == title
    assert title.startswith("fail · hostile[</script>")


def test_even_a_script_that_got_in_would_not_run(reader: Reader) -> None:
    """The page's own policy: no script but ours, whatever the templates let through. So the test adds one."""
    text = html.run_page(broken()).replace("</main>", "<img src=x onerror=\"document.title='in'\"></main>")
    text = text.replace("</main>", "<script>document.title = 'in'</script></main>")
    page = reader.open(text)
    assert page.title().startswith("fail")
    watched = reader._watched.pop()
    assert any("Content Security Policy" in complaint for complaint in watched.complaints)
    page.close()


# -- long runs ---------------------------------------------------------------------------------------------


def test_a_long_run_draws_what_is_in_sight_and_says_what_is_left_out(reader: Reader) -> None:
    trace = long(3_000, jobs=4)
    page = reader.open(html.run_page(trace))
    last = len(trace.steps)
    assert chosen(page) == last
    assert page.locator(".row").count() < 200
    assert page.locator("svg.chart *").count() < 2_000
    page.keyboard.press("Home")
    assert chosen(page) == 1
    page.keyboard.press("0")
    expect(page.locator("#left-out")).to_contain_text("Zoomed out: 3,0")
    expect(page.locator("#left-out")).to_contain_text("texts and arrows are left out")
    assert page.locator("svg.chart *").count() < 3_000
    assert page.locator(".chart .mark-stale").count() > 0, "the broken step is drawn at any zoom"
    page.keyboard.press("End")
    assert chosen(page) == last


def test_a_run_without_steps_says_so(reader: Reader) -> None:
    page = reader.open(html.run_page(Story().trace("inconclusive", reasons=["no step was run"])))
    expect(page.locator("#inspector")).to_contain_text("This run has no step.")
    expect(page.locator("#headline")).to_have_text("Nothing broke, and nothing is proven: no step was run")


# -- index -------------------------------------------------------------------------------------------------


@pytest.fixture
def suite_index(tmp_path: Path) -> Path:
    traces: list[Trace] = [survived(), broken(), survived("another"), hostile()]
    for place, trace in enumerate(traces):
        write_trace(trace, tmp_path / f"run-{place}.jsonl")
    written = html.write([tmp_path], output=tmp_path / "report").path
    assert written is not None
    return written


def test_the_index_sorts_filters_and_leads_to_every_page(reader: Reader, suite_index: Path) -> None:
    page = reader.visit(suite_index)
    expect(page.locator("#headline")).to_have_text("1 of 3 runs failed")
    rows = page.locator("#runs tbody tr:visible")
    assert rows.count() == 4
    page.locator("#runs th button", has_text="steps").click()
    counts = [int(text) for text in rows.locator("td:nth-child(5)").all_inner_texts()]
    assert counts == sorted(counts)
    page.locator("#runs th button", has_text="steps").click()
    counts = [int(text) for text in rows.locator("td:nth-child(5)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    page.select_option("#verdict-filter", "fail")
    assert rows.count() == 2
    assert page.locator("#matrix tbody tr:visible").count() == 2
    page.select_option("#queue-filter", "broken_twin")
    expect(page.locator("#filter-count")).to_have_text("1 of 4 runs")
    page.locator("#matrix td.broken a:visible").first.click()
    page.wait_for_url("**/runs/run-1.html#step-6")
    assert chosen(page) == 6
    page.click("text=All runs")
    page.wait_for_url("**/index.html")
    page.keyboard.press("/")
    page.keyboard.type("another")
    assert page.locator("#runs tbody tr:visible").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_index_is_readable_in_both_themes_and_on_narrow_screens(
    reader: Reader, suite_index: Path, scheme: str
) -> None:
    page = reader.visit(suite_index, size=NARROW, scheme=scheme)
    assert (lightness(background(page)) > 0.5) == (scheme == "light")
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    expect(page.locator("#twins")).to_contain_text("told_by_hand")
    expect(page.locator("#adapters")).to_contain_text("made:reference")
