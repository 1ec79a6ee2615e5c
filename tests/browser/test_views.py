"""The page shows the ledger's figures and their changes on any screen."""

from __future__ import annotations

import itertools
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from schemas import Amount
from stream.monitor.api.models import Readiness
from stream.monitor.api.service_models import MemberRow, PartitionRow, WorkersView
from stream.monitor.api.views import source_row
from tests.browser.conftest import OpenPage
from tests.browser.scene import OPERATOR, Scene, above, values
from tests.unit.monitor.installation import HIGH, LOW, spec

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PLACES = ("overview", "streams", "streams/ward-3%2Fheart-rate", "sources", "sources/vitals", "workers", "rejected")


def size(amount: Amount, unit: str) -> float:
    return float(getattr(amount, unit))


async def amounts(page: Page, source: str) -> dict[str, float]:
    entry = page.locator("li.source", has=page.get_by_role("link", name=source, exact=True))
    names = await entry.locator("dt").all_inner_texts()
    texts = await entry.locator("dd").all_inner_texts()
    return {name: float(text.split()[1].replace(",", "")) for name, text in zip(names, texts, strict=True)}


async def test_every_source_shows_the_ledgers_budget(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "sources")
        await expect(page.locator("li.source")).to_have_count(5)
        for source in ("vitals", "energy", "payments", "web-traffic", "census"):
            record = scene.driver.budget(source)
            row = source_row(scene.tables, scene.tables.sources[source])
            # With Gaussian noise, amounts do not add up, because an amount with a δ shows the ε that its ρ implies.
            in_rho = row.total.rho and (
                row.left.delta or (row.left.rho or 0.0) / row.total.rho >= row.left.epsilon / row.total.epsilon
            )
            shown = await amounts(page, source)
            for part in ("granted", "spent", "refunded", "left"):
                assert shown[part] == pytest.approx(
                    size(getattr(record, part), "rho" if in_rho else "epsilon"), rel=1e-3
                ), (source, part)


async def test_budget_bars_add_up_to_the_whole_in_picture_and_words(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "sources")
        bars = page.locator(".burn")
        await expect(bars).to_have_count(5)
        for bar in await bars.all():
            await expect(bar).to_have_attribute("aria-label", re.compile(r"^Of [ερ] .* granted .* spent .* left"))
            widths = await bar.evaluate("bar => [...bar.children].map(part => parseFloat(part.style.width))")
            assert sum(widths) == pytest.approx(100.0, abs=0.1)


async def test_every_stream_shows_its_state_and_tops_of_the_cutoff(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "streams")
        await expect(page.locator("table.streams tbody tr")).to_have_count(scene.tables.shown_streams)
        for row in await page.locator("table.streams tbody tr").all():
            name = await row.locator(".cell-stream a").first.inner_text()
            entry = scene.tables.streams[name]
            assert await row.locator(".badge").text_content() == f"{SIGNS[entry.state]}{entry.state}", name
            used = "once" if entry.cutoff is None else f"{entry.tops} of {entry.cutoff}"
            assert await row.locator(".cell-tops .figure").inner_text() == used, name


SIGNS = {"open": "●", "exhausted": "◐", "halted": "■", "closed": "○"}


async def test_stream_page_shows_a_timeline_up_to_the_cutoff(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "streams/ward-3%2Fheart-rate")
        tops = scene.tables.streams["ward-3/heart-rate"].tops
        chart = page.get_by_role("img", name="Answers above so far")
        await expect(chart).to_have_attribute("aria-label", f"Answers above so far. answers above: {tops} at last")
        await expect(chart.locator(".limit-text")).to_have_text("24 are paid for")
        await chart.focus()
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator(".readout").first).to_have_text(re.compile(rf": {tops}$"))


async def test_rejected_events_are_shown_by_reason_without_content(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "rejected")
        await expect(page.locator("table.reasons tr")).to_have_count(2)
        text = await page.locator("table.reasons").inner_text()
        assert re.search(r"unknown-stream\s+23", text)
        assert re.search(r"malformed\s+13", text)
        await expect(page.get_by_text("no JSON at all")).to_have_count(0)


async def test_rejected_events_are_filtered_by_reason_stream_and_id(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "rejected")
        rows = page.get_by_role("table", name="Latest").locator("tbody tr")
        await expect(rows).to_have_count(36)
        await page.get_by_role("button", name="unknown-stream").click()
        await expect(rows).to_have_count(23)
        await expect(page.get_by_label("Reason", exact=True)).to_have_value("unknown-stream")
        await page.get_by_role("searchbox").fill("LATE-7")
        await expect(rows).to_have_count(1)
        await expect(rows.locator(".cell-stream a")).to_have_text("nowhere/at-all")
        await expect(rows.locator(".cell-id")).to_have_text("late-7")
        await expect(rows.locator(".cell-place")).to_have_text(re.compile(r"^\S+/\d+ @ \d+$"))
        await expect(page).to_have_url(re.compile(r"code=unknown-stream"))
        await page.get_by_label("Reason", exact=True).select_option("")
        await page.get_by_role("searchbox").fill("")
        await expect(rows).to_have_count(36)


async def test_times_have_date_and_zone(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "rejected", timezone_id="America/New_York")
        first = page.get_by_role("table", name="Latest").locator(".cell-time").first
        await expect(first).to_have_text(re.compile(r"^\d{1,2} \w{3,4} 20\d\d, \d\d:\d\d:\d\d (GMT-[45]|E[SD]T)$"))
        await page.goto(f"{address}/#/streams/ward-3%2Fheart-rate")
        await expect(page.locator(".zone").first).to_have_text(re.compile(r"^\d{1,2} \w{3,4} (GMT-[45]|E[SD]T)$"))


@pytest.mark.parametrize("width", [360, 480, 820, 1280])
async def test_labels_of_a_time_axis_do_not_touch(scene: Scene, open_page: OpenPage, width: int) -> None:
    async with scene.served() as address:
        page = await open_page(address, viewport={"width": width, "height": 800})
        for place in ("overview", "streams/ward-3%2Fheart-rate", "sources/payments"):
            await page.goto(f"{address}/#/{place}")
            await expect(page.locator(".chart .zone").first).to_be_visible()
            for chart in await page.locator(".chart svg").all():
                ends = await chart.evaluate(LABELS)
                assert len(ends) >= 2, place
                assert all(before[1] + 2 <= after[0] for before, after in itertools.pairwise(ends)), (place, ends)


LABELS = """svg => [...svg.querySelectorAll(".time, .zone")]
  .map(label => label.getBoundingClientRect()).map(({ left, right }) => [left, right]).sort((a, b) => a[0] - b[0])"""


async def test_color_means_one_thing(scene: Scene, open_page: OpenPage) -> None:
    """No two of the names in the theme have the same color, in light or dark."""
    async with scene.served() as address:
        for scheme in ("light", "dark"):
            page = await open_page(address, color_scheme=scheme)
            names = (
                "accent",
                "spent",
                "granted",
                "left",
                "left-line",
                "refunded",
                "charged",
                "free",
                "good",
                "warn",
                "bad",
                "idle",
            )
            colors = await page.evaluate(
                "names => names.map(name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim())",
                names,
            )
            assert all(colors)
            assert len(set(colors)) == len(names), colors


async def test_page_uses_words_instead_of_top_and_bottom_signs(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address)
        for place in PLACES:
            await page.goto(f"{address}/#/{place}")
            await expect(page.locator("h1")).to_be_visible()
            await expect(page.locator(".figure:visible, .chart:visible, tbody tr").first).to_be_visible()
            shown = await page.evaluate("document.getElementById('page').outerHTML")
            assert not set("⊤⊥") & set(shown), place


async def test_stream_takes_three_short_lines_of_a_phone(scene: Scene, open_page: OpenPage) -> None:
    """A card may take half of the 209 pixels that the lowest card with labels above its figures took."""
    async with scene.served() as address:
        page = await open_page(address, "streams", viewport={"width": 360, "height": 740})
        rows = page.locator("table.streams tbody tr")
        await expect(rows).to_have_count(scene.tables.shown_streams)
        heights = await rows.evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
        assert max(heights) <= 209 / 2, heights


async def test_workers_are_shown_with_partitions_lag_and_restore(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address)
        await page.clock.set_fixed_time(datetime.fromtimestamp(scene.now, UTC))
        await page.goto(f"{address}/#/workers")
        worker = page.get_by_role("table", name="Processes").locator("tr", has_text="sotto-worker-91ab")
        assert (await worker.inner_text()).split()[:11] == [
            "sotto-worker-91ab",
            "worker",
            "10.0.4.12",
            "2–3",
            "118",
            "1.8",
            *("0.3.0", "2", "h", "310", "MB"),
        ]
        restoring = page.get_by_role("table", name="Input partitions").locator("tr", has_text="of 18,377 offsets")
        await expect(restoring.locator(".track span")).to_have_attribute("style", re.compile("width: 49.5"))


async def test_page_shows_that_one_more_question_may_wait(open_page: OpenPage) -> None:
    """If the lag of a partition is unclear, the overview and the workers' view show a range."""
    scene = Scene()
    place: dict[str, Any] = {"partition": 0, "member": None, "position": 6, "end": 7, "restore": None}
    row = PartitionRow(role="worker", lag=0, hidden_lag=1, events_per_second=0.0, **place)
    scene.monitor.set_workers(WorkersView(time=scene.now, members=[], partitions=[row]))
    async with scene.served() as address:
        page = await open_page(address)
        waiting = page.locator(".tile", has_text="Waiting queries")
        await expect(waiting).to_contain_text("0 to 1")
        await expect(waiting).to_contain_text("unclear after a halted question")
        await page.goto(f"{address}/#/workers")
        await expect(page.get_by_role("table", name="Input partitions")).to_contain_text("0 to 1")
        note = page.get_by_text("A feed's lag and events are those of the topic of partial counts.")
        await expect(note).to_be_hidden()
        feed = MemberRow(role="feed", member="feed-1", host="vm", partitions=[0], lag=0, events_per_second=1.6)
        scene.monitor.set_workers(WorkersView(time=scene.now, members=[feed], partitions=[row]))
        await page.reload()
        await expect(note).to_be_visible()


async def test_workers_view_says_why_a_process_is_not_ready(open_page: OpenPage) -> None:
    scene = Scene()
    names = {"worker-1": "input-0: the topic was rolled back", "worker-2": None}
    members = [
        MemberRow(
            member=name, role="worker", host="vm", partitions=[], lag=0, events_per_second=0.0, not_ready=reason
        )
        for name, reason in names.items()
    ]
    scene.monitor.set_workers(WorkersView(time=scene.now, members=members, partitions=[]))
    async with scene.served() as address:
        page = await open_page(address, "workers")
        cells = page.get_by_role("table", name="Processes").locator("td.cell-process")
        await expect(cells.first).to_contain_text("worker-1")
        await expect(cells.first).to_contain_text("Not ready: input-0: the topic was rolled back")
        await expect(cells.last).to_have_text("worker-2")
        await page.goto(f"{address}/#/overview")
        await expect(page.get_by_text("Not ready: worker-1; the page Workers has the reasons.")).to_be_visible()


async def test_workers_view_names_the_markers_that_no_lag_counts(open_page: OpenPage) -> None:
    """Without them a position before the end would contradict the lag of 0."""
    scene = Scene()
    place: dict[str, Any] = {
        "role": "worker",
        "member": None,
        "end": 34,
        "events_per_second": 0.0,
        "restore": None,
    }
    rows = [
        PartitionRow(partition=0, position=33, lag=0, **place),
        PartitionRow(partition=1, position=30, lag=4, **place),
        PartitionRow(partition=2, position=34, lag=0, **place),
    ]
    scene.monitor.set_workers(WorkersView(time=scene.now, members=[], partitions=rows))
    async with scene.served() as address:
        page = await open_page(address, "workers")
        ends = page.get_by_role("table", name="Input partitions").locator("td.cell-end")
        await expect(ends).to_have_text(["34 (1 marker)", "34", "34"])


async def test_page_follows_the_ledger_without_a_reload(open_page: OpenPage) -> None:
    scene = Scene()
    scene.driver.register(values("feed", 4.0))
    scene.driver.open(above("ward", "feed", 1.0, 3))
    scene.flow()
    async with scene.served() as address:
        page = await open_page(address, "streams")
        used = page.locator(".cell-tops .figure")
        await expect(used).to_have_text("0 of 3")
        scene.ask("ward", LOW, HIGH)
        await expect(used).to_have_text("1 of 3")
        scene.driver.open(above("second", "feed", 1.0, 3))
        scene.flow()
        await expect(page.locator("table.streams tbody tr")).to_have_count(2)
        scene.ask("ward", HIGH, HIGH)
        await expect(page.locator("tr", has_text="ward").locator(".badge")).to_contain_text("exhausted")


async def test_overview_calls_no_first_answer_free(open_page: OpenPage) -> None:
    """A first answer below the threshold is not charged, but it spends ε."""
    scene = Scene()
    scene.driver.register(values("feed", 4.0))
    scene.driver.open(above("ward", "feed", 1.0, 3))
    scene.flow()
    scene.ask("ward", LOW)
    async with scene.served() as address:
        page = await open_page(address, "overview")
        charged, other = (
            page.locator(".tile", has_text=f"{one} per second") for one in ("Charged", "Other answers")
        )
        await expect(charged).to_contain_text("0 in all; a stream's first answer may spend ε as well")
        await expect(other).to_contain_text("1 in all")
        assert "free" not in (await page.locator("main").inner_text()).lower()


async def test_empty_installation_names_the_first_commands(open_page: OpenPage) -> None:
    async with Scene().served() as address:
        page = await open_page(address, "sources")
        await expect(page.locator(".empty:visible pre")).to_contain_text("sotto source add")
        await page.get_by_role("link", name="Streams").click()
        await expect(page.locator(".empty:visible pre")).to_contain_text("sotto stream open")
        await page.get_by_role("link", name="Workers").click()
        await expect(page.locator(".empty:visible pre")).to_contain_text("sotto serve worker")


@pytest.mark.parametrize("place", ["streams/nowhere%2Fat-all", "sources/nowhere%2Fat-all"])
async def test_unknown_name_is_reported_and_cannot_be_halted(
    scene: Scene, open_page: OpenPage, place: str
) -> None:
    async with scene.served() as address:
        page = await open_page(address, place)
        await expect(page.get_by_role("alert")).to_have_text(
            f"there is no {place[:6].rstrip('s')} 'nowhere/at-all'"
        )
        await expect(page.get_by_role("button", name="Halt")).to_have_count(0)
        back = page.get_by_role("link", name=f"All {place.split('/', maxsplit=1)[0]}")
        await back.click()
        await expect(page).to_have_url(re.compile(rf"#/{place.split('/', maxsplit=1)[0]}$"))
        await page.goto(f"{address}/#/%E0%A4%A")
        await expect(page.get_by_text("There is no such page")).to_be_visible()
        await page.get_by_role("link", name="Overview", exact=True).last.click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


async def test_filters_are_part_of_the_address(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "streams")
        rows = page.locator("table.streams tbody tr")
        await page.get_by_role("button", name="halted").click()
        await page.get_by_role("button", name="exhausted").click()
        await page.get_by_role("button", name="Answered").click()
        await page.get_by_role("searchbox").fill("WARD-7")
        await expect(rows).to_have_count(2)
        names = await rows.locator(".cell-stream .name:not(.quiet)").all_inner_texts()
        place = page.url.partition("#/")[2]
        other = await open_page(address, place)
        again = other.locator("table.streams tbody tr")
        await expect(again).to_have_count(2)
        assert await again.locator(".cell-stream .name:not(.quiet)").all_inner_texts() == names
        assert names == ["ward-7/oxygen", "ward-7/heart-rate"]
        await expect(other.get_by_role("searchbox")).to_have_value("WARD-7")


async def test_lost_connection_shows_the_age_of_figures_until_it_is_back(
    scene: Scene, open_page: OpenPage
) -> None:
    async with scene.served() as address:
        page = await open_page(address, "sources")
        await expect(page.locator("li.source")).to_have_count(5)
    banner = page.get_by_role("alert").filter(has_text="Connection lost")
    await expect(banner).to_contain_text(re.compile(r"Figures are as of \d+ \w+ \d{4}, \d\d:\d\d:\d\d \w+"))
    await expect(page.get_by_text("not live")).to_be_visible()
    await expect(page.locator("li.source")).to_have_count(5)
    async with scene.served(int(address.rpartition(":")[2])):
        await page.get_by_role("button", name="Try now").click()
        await expect(banner).to_be_hidden()
        await expect(page.get_by_text("live", exact=True)).to_be_visible()


async def test_restarted_monitor_is_not_live_before_its_figures_are(open_page: OpenPage) -> None:
    before, after = Scene(), Scene()
    before.open(spec("ward/7"), spec("ward/8"))
    async with before.served() as address:
        page = await open_page(address, "streams")
        rows = page.locator("table.streams tbody tr")
        await expect(rows).to_have_count(2)
    status = page.get_by_role("status").and_(page.locator(".live"))
    await expect(status).to_have_text("not live")
    after.readiness = Readiness(
        ready=False, behind=7, reason="the monitor has not yet read its topics to their ends"
    )
    async with after.served(int(address.rpartition(":")[2])):
        await page.get_by_role("button", name="Try now").click()
        notice = page.get_by_text(
            "Not up to date: the monitor has not yet read its topics to their ends, 7 records to go."
        )
        await expect(notice).to_be_visible()
        await expect(status).to_have_text("not up to date")
        await expect(page.get_by_text("Connection lost")).to_be_hidden()
        await expect(rows).to_have_count(2)
        # The text of the page is noted at every change of the table and of the state.
        await page.evaluate(NOTE)
        after.open(spec("ward/7"), spec("ward/8"))
        after.readiness = Readiness(ready=True, behind=0)
        await expect(status).to_have_text("live")
        await expect(notice).to_be_hidden()
        assert (
            await page.evaluate("window.noted.filter(([word, rows]) => word === 'live' && rows === 0).length") == 0
        )
        assert await rows.count() == 2
        after.readiness = Readiness(ready=False, behind=0, reason="Kafka does not answer")
        await expect(status).to_have_text("not up to date")
        await expect(page.get_by_text("Not up to date: Kafka does not answer.")).to_be_visible()
        await expect(rows).to_have_count(2)


NOTE = """() => {
  window.noted = [];
  const note = () => window.noted.push([
    document.querySelector(".live").textContent, document.querySelectorAll("table.streams tbody tr").length,
  ]);
  new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


async def test_view_is_not_live_before_its_own_figures_are(scene: Scene, open_page: OpenPage) -> None:
    async with scene.served() as address:
        page = await open_page(address, "overview")
        await page.evaluate(NOTE)
        await page.goto(f"{address}/#/streams")
        await expect(page.locator("table.streams tbody tr").first).to_be_visible()
        await expect(page.locator(".live")).to_have_text("live")
        noted = await page.evaluate("window.noted")
    assert ["connecting", 0] in noted
    assert ["live", 0] not in noted


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_view_fits_a_phone_and_is_readable(scene: Scene, open_page: OpenPage, scheme: str) -> None:
    async with scene.served() as address:
        page = await open_page(address, viewport={"width": 360, "height": 740}, color_scheme=scheme)
        for place in PLACES:
            await page.goto(f"{address}/#/{place}")
            await expect(page.locator("h1")).to_be_visible()
            await expect(page.locator(".figure:visible, .chart:visible, tbody tr").first).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360, place
            assert await page.evaluate(FAINT) == [], place


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_form_fits_a_phone_has_labels_and_is_readable(
    scene: Scene, open_page: OpenPage, scheme: str
) -> None:
    async with scene.served() as address:
        page = await open_page(
            address, token=OPERATOR, viewport={"width": 360, "height": 740}, color_scheme=scheme
        )
        for place, shown in FORMS.items():
            await page.goto(f"{address}/#/{place}")
            await expect(page.locator(shown).first).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360, place
            assert await page.evaluate(FAINT) == [], place
            assert await page.evaluate(NAMELESS) == [], place


FORMS = {
    "register": ".attribute",
    "plan?source=census": ".chosen-text",
    "ask?stream=households": "fieldset.where",
    "ask?stream=seniors%2Fcounts": "fieldset.where",
}

# Return every visible control without a name.
NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button")]
  .filter(control => control.checkVisibility())
  .filter(control => !control.labels?.length && !control.ariaLabel && !control.textContent.trim())
  .map(control => control.outerHTML)"""


# Return every visible text whose contrast to the nearest background, as WCAG 2 defines it, is below 4.5.
FAINT = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue]
    .map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("#page *")) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !element.checkVisibility() || element.disabled) continue;
    const style = getComputedStyle(element);
    const ink = element instanceof SVGElement ? style.fill : style.color;
    const [bright, dark] = [light(channels(ink)), light(ground(element))].sort((a, b) => b - a);
    if ((bright + 0.05) / (dark + 0.05) < 4.5) faint.push(`${element.tagName}.${element.className}: ${element.textContent}`);
  }
  return faint;
}"""


async def test_ten_thousand_streams_stay_usable(open_page: OpenPage, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    scene.with_streams(10_000)
    async with scene.served() as address:
        page = await open_page(address)
        began = time.perf_counter()
        await page.goto(f"{address}/?again#/streams")
        rows = page.locator("table.streams tbody tr")
        await expect(rows).to_have_count(50)
        listed = time.perf_counter() - began
        paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000")
        await expect(page.get_by_text("1–50 of 10,000 streams")).to_be_visible()
        began = time.perf_counter()
        await page.get_by_role("searchbox").fill("stream-07345")
        await expect(rows).to_have_count(1)
        searched = time.perf_counter() - began
        await expect(page.get_by_text("1–1 of 1 stream, out of 10,000")).to_be_visible()
        await expect(rows.locator(".cell-answered .figure")).to_have_text("7,345")
        await page.get_by_role("searchbox").fill("")
        await expect(rows).to_have_count(50)
        began = time.perf_counter()
        await page.get_by_role("button", name="Answered").click()
        await page.get_by_role("button", name="Answered").click()
        await expect(rows.first.locator(".cell-answered .figure")).to_have_text("9,998")
        sorted_in = time.perf_counter() - began
        await page.get_by_role("button", name="Next").click()
        await expect(rows.first.locator(".cell-answered .figure")).to_have_text("9,948")
        elements = await page.evaluate("document.querySelectorAll('*').length")
    with capsys.disabled():
        sys.stdout.write(
            f"\n10,000 streams: first paint after {paint:.2f} s, list after {listed:.2f} s, search {searched:.2f} s "
            f"(0.25 s of it waiting for the typist), sort {sorted_in:.2f} s, {elements} elements\n"
        )
    assert elements < 4000


async def test_ended_stream_has_no_forecast_and_one_state(scene: Scene, open_page: OpenPage) -> None:
    name = next(name for name, entry in scene.tables.streams.items() if entry.state == "exhausted")
    async with scene.served() as address:
        page = await open_page(address, f"streams/{quote(name, safe='')}")
        await expect(page.locator("dl")).to_contain_text("it is exhausted")
        await expect(page.locator("dl")).to_contain_text("the grant is used up, so the promise covers only the")
        await expect(page.locator("dl")).not_to_contain_text("no end in sight")
        await expect(page.locator("dl")).not_to_contain_text("the rest of the grant pays")
        await expect(page.locator("p.reason").first).to_have_text(re.compile(r"^exhausted: (?!exhausted)"))


async def test_stream_that_its_worker_refuses_is_not_shown_as_open(scene: Scene, open_page: OpenPage) -> None:
    name, entry = next((name, entry) for name, entry in scene.tables.streams.items() if entry.state == "open")
    entry.refused = "table: source data differs"
    try:
        async with scene.served() as address:
            page = await open_page(address, f"streams/{quote(name, safe='')}")
            await expect(page.locator(".badge").first).to_contain_text("not answering")
            await expect(page.locator("p.reason")).to_contain_text("does not answer")
            await expect(page.locator("p.reason")).to_contain_text("table: source data differs")
    finally:
        entry.refused = None
