"""The page in a real browser: it opens offline, answers, and is legible everywhere."""

from __future__ import annotations

import csv
import io
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flipguard import Policy, check, compare, write_report
from tests.report import made
from tests.report.conftest import Opener, look_at, until

SECTIONS = [
    "The numbers",
    "Right and wrong, old and new",
    "What breaks",
    "The samples",
    "Where answers went",
    "Confidence",
    "Distance of logits",
    "Training and its cost",
    "How this was computed",
]


def shown_rows(page: Any, table: str = ".samples") -> list[list[str]]:
    """The text of every cell of the rows in sight."""
    cells = f"""[...document.querySelectorAll('{table} tbody tr')].filter((row) => !row.hidden)
      .map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"""
    return page.evaluate(cells)


def ids_of(page: Any) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('.samples tbody th')].map((cell) => cell.textContent)"
    )


def total_of(page: Any) -> int:
    text = page.locator(".count").inner_text()
    found = re.search(r" of ([\d,]+)", text)
    return int(found[1].replace(",", "")) if found else 0


def every_id(page: Any) -> list[str]:
    """The ids of all pages, page by page."""
    found = ids_of(page)
    while page.locator(".pages .next").is_enabled():
        page.locator(".pages .next").click()
        found += ids_of(page)
    return found


def header(page: Any, table: str, words: str) -> Any:
    return page.locator(f"{table} thead th button", has_text=re.compile(rf"^{words}$")).first


def test_it_opens_from_disk_without_a_network_and_without_complaint(
    story: Path, opened: Opener
) -> None:
    found = opened(story)
    assert found.page.title() == "old → new: what the update breaks"
    assert found.page.locator("h2").all_inner_texts() == SECTIONS
    # Every chart comes alive when it is scrolled to, under a policy that compiles no text.
    charts = found.page.locator("[data-chart]")
    for i in range(charts.count()):
        look_at(charts.nth(i))
    until(
        found.page,
        "document.querySelectorAll('[data-live]').length"
        " === document.querySelectorAll('[data-chart]').length",
    )
    assert charts.count() >= 8
    assert found.troubles() == []


def test_a_text_that_would_be_compiled_is_refused(story: Path, opened: Opener) -> None:
    """The policy bites: what the tests above say about complaints could fail."""
    found = opened(story)
    found.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'window.ran = 1'}))"
    )
    assert found.page.evaluate("window.ran") is None
    assert any("script-src" in trouble for trouble in found.troubles())
    found.page.evaluate(
        "document.body.append(Object.assign(document.createElement('img'),"
        " {src: 'https://example.org/a.png'}))"
    )
    until(found.page, "window.refused.length > 1")
    assert any("img-src" in trouble for trouble in found.troubles())


@pytest.mark.parametrize("kind", ["negative", "positive", "wrong_to_wrong"])
def test_samples_can_be_chosen_by_kind(kind: str, story: Path, opened: Opener) -> None:
    result, _ = made.judged()
    page = opened(story).page
    words = {"negative": "negative flip", "positive": "positive flip"}.get(kind, "wrong to other")
    page.locator(".kinds label", has_text=words).click()
    assert every_id(page) == result.flips(kind)["id"].to_list()


def test_samples_can_be_chosen_by_class_group_and_search(story: Path, opened: Opener) -> None:
    flips = made.judged()[0].flips()
    page = opened(story).page
    assert ids_of(page) == flips["id"].head(25).to_list()
    assert total_of(page) == flips.height

    def pick(label: str, value: str) -> None:
        select = page.locator(".picks label", has_text=label).locator("select")
        choice = select.locator("option", has_text=re.compile(rf"^{value} \("))
        select.select_option(choice.get_attribute("value"))

    pick("Class", "yield")
    expected = flips.filter(pl.col("target") == "yield")
    assert every_id(page) == expected["id"].to_list()
    pick("site", "south")
    expected = expected.filter(pl.col("site") == "south")
    assert 0 < expected.height < flips.height
    assert every_id(page) == expected["id"].to_list()
    page.locator("input[type=search]").fill("SPEED_30")
    either = (pl.col("old") == "speed_30") | (pl.col("new") == "speed_30")
    assert every_id(page) == expected.filter(either)["id"].to_list()
    page.locator("input[type=search]").fill("no such thing")
    assert ids_of(page) == []
    assert "No sample matches" in page.locator(".count").inner_text()
    page.locator(".reset").click()
    assert ids_of(page) == flips["id"].head(25).to_list()
    page.locator("input[type=search]").fill(flips["id"][-1])
    assert ids_of(page) == [flips["id"][-1]]


def test_pages_turn_and_stop_at_the_ends(story: Path, opened: Opener) -> None:
    flips = made.judged()[0].flips()["id"].to_list()
    page = opened(story).page
    assert page.locator(".previous").is_disabled()
    page.locator(".next").click()
    assert ids_of(page) == flips[25:50]
    page.locator(".previous").click()
    assert every_id(page) == flips
    assert page.locator(".next").is_disabled()


def test_samples_sort_by_any_column_both_ways_and_back(story: Path, opened: Opener) -> None:
    flips = made.judged()[0].flips()
    page = opened(story).page
    button = page.locator(".samples th[data-key=new_confidence] button")
    for turn, (direction, descending) in enumerate(
        [("descending", True), ("ascending", False), ("none", None)]
    ):
        button.click()
        place = page.locator(".samples th[data-key=new_confidence]")
        assert place.get_attribute("aria-sort") == direction, turn
        if descending is None:
            expected = flips["id"].to_list()
        else:
            rounded = flips.with_columns(pl.col("new_confidence").round(4))
            ordered = rounded.sort("new_confidence", descending=descending, maintain_order=True)
            expected = ordered["id"].to_list()
        assert ids_of(page) == expected[:25]
    for key in ("id", "kind", "target", "old", "new", "old_confidence", "group:0"):
        page.locator(f".samples th[data-key='{key}'] button").click()
        assert page.locator(f".samples th[data-key='{key}']").get_attribute("aria-sort") != "none"
        assert page.locator(".samples th[aria-sort]:not([aria-sort=none])").count() == 1


def test_every_table_sorts_by_every_column(story: Path, opened: Opener) -> None:
    found = opened(story)
    page = found.page
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    tables = page.locator("table[data-sortable]")
    assert tables.count() >= 8
    for i in range(tables.count()):
        buttons = tables.nth(i).locator("thead button")
        assert buttons.count() == tables.nth(i).locator("thead th").count()
        for j in range(buttons.count()):
            buttons.nth(j).focus()
            page.keyboard.press("Enter")
            values = tables.nth(i).evaluate(
                """(table, column) => [...table.tBodies[0].rows].map((row) => {
                  const cell = row.cells[column];
                  if (cell.dataset.value === undefined) return cell.textContent.trim() || null;
                  return cell.dataset.value === '' ? null : Number(cell.dataset.value);
                })""",
                j,
            )
            sort = tables.nth(i).locator("thead th").nth(j).get_attribute("aria-sort")
            known = [value for value in values if value is not None]
            assert values == known + [None] * (len(values) - len(known)), "what is missing is last"
            if known and isinstance(known[0], float | int):
                assert known == sorted(known, reverse=sort == "descending")
    assert found.troubles() == []


def test_numbers_are_sorted_as_numbers_wherever_they_stand(tmp_path: Path, opened: Opener) -> None:
    """Groups that are numbers, reasons, and what is compared with retrains."""
    found = made.models(400, names=("old", "new", "one", "two", "three"))
    exposures = [("0.5", "0.25", "-2", "-1", "10", "9", "1e-3", "dark")[i % 8] for i in range(400)]
    old, new, *controls = (
        replace(one, frame=one.frame.with_columns(pl.Series("exposure", exposures)))
        for one in found.values()
    )
    result = compare(old=old, new=new, control=controls, by=["exposure"])
    rule = {"metric": "negative_flip_rate", "max": 0.001, "by": "exposure"}
    gain = {"metric": "accuracy_gain", "min": 0.0}
    verdict = check(result, Policy.from_dict({"rule": [rule, gain]}))
    write_report(result, tmp_path / "a.html", verdict=verdict)
    page = opened(tmp_path / "a.html").page
    header(page, ".samples", "exposure").click()
    seen = []
    while True:
        seen += [row[-1] for row in shown_rows(page)]
        if not page.locator(".pages .next").is_enabled():
            break
        page.locator(".pages .next").click()
    assert list(dict.fromkeys(seen)) == ["-2", "-1", "1e-3", "0.25", "0.5", "9", "10", "dark"]
    for table, words, column in (
        (".reasons table", "value", 3),
        ("table:has-text('retrain')", "this update", 1),
    ):
        header(page, table, words).click()
        cells = page.locator(table).first.locator(f"tbody tr > :nth-child({column + 1})")
        values = [cells.nth(i).get_attribute("data-value") for i in range(cells.count())]
        known = [float(value) for value in values if value]
        assert len(known) > 1
        assert known == sorted(known, reverse=True)


def test_an_address_leads_into_any_candidate_and_back(several: Path, opened: Opener) -> None:
    found = opened(several)
    page = found.page
    names = "[...document.querySelectorAll('.candidate')].filter((c) => !c.hidden).map((c) => c.id)"
    page.goto(f"{several.resolve().as_uri()}#c1-flows")
    page.reload()
    assert page.evaluate(names) == ["c1"]
    assert page.locator("[data-pick=c1]").get_attribute("aria-pressed") == "true"
    assert page.locator("#c1-flows").is_visible()
    page.locator("[data-pick=c0]").click()
    page.locator(".contents a", has_text="Numbers").click()
    assert page.evaluate("location.hash") == "#c0-numbers"
    page.go_back()
    until(page, f"{names}.join() === 'c1'")
    page.goto(f"{several.resolve().as_uri()}#c7-flows")
    page.reload()
    assert page.evaluate(names) == ["c0"]
    assert found.troubles() == []


def test_what_was_unfolded_to_print_is_folded_again(story: Path, opened: Opener) -> None:
    page = opened(story).page
    folded = "[...document.querySelectorAll('details')].map((part) => part.open)"
    before = page.evaluate(folded)
    assert False in before
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert all(page.evaluate(folded))
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(folded) == before


def test_pages_of_samples_without_targets_draw_without_complaint(
    tmp_path: Path, opened: Opener
) -> None:
    bare = {
        name: replace(one, frame=one.frame.with_columns(target=pl.lit(None, dtype=pl.String)))
        for name, one in made.models(120).items()
    }
    write_report(compare(old=bare["old"], new=bare["new"]), tmp_path / "a.html")
    found = opened(tmp_path / "a.html")
    charts = found.page.locator("[data-chart]")
    for i in range(charts.count()):
        look_at(charts.nth(i))
    found.page.wait_for_timeout(200)
    assert found.troubles() == []


def test_long_tables_fold_and_unfold(story: Path, opened: Opener) -> None:
    page = opened(story).page
    rows = page.locator(".flows tbody tr")
    assert rows.count() > 15
    assert len(shown_rows(page, ".flows")) == 12
    button = page.locator("button.fold").last
    button.click()
    assert len(shown_rows(page, ".flows")) == rows.count()
    assert button.get_attribute("aria-expanded") == "true"


def test_the_theme_follows_the_system_until_it_is_chosen(story: Path, opened: Opener) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = opened(story), opened(story, theme="dark")
    colours = [found.page.evaluate(ground) for found in (light, dark)]
    assert colours[0] != colours[1]
    light.page.locator(".theme").click()
    assert light.page.evaluate(ground) == colours[1]
    assert light.page.locator(".theme").inner_text() == "Light"
    light.page.reload()
    assert light.page.evaluate(ground) == colours[1], "the choice is kept"
    light.page.locator(".theme").click()
    assert light.page.evaluate(ground) == colours[0]


def test_a_pointer_on_a_chart_tells_the_numbers(story: Path, opened: Opener) -> None:
    result, _ = made.judged()
    found = opened(story)
    chart = found.page.locator("#c0-groups-1")
    look_at(chart.locator("[data-chart]").first)
    found.page.wait_for_selector("#c0-groups-1 [data-live], #c0-groups-1 .drawing[data-live]")
    assert found.page.locator("#tip").is_hidden()
    chart.locator(".mark-symbol path").first.hover()
    told = found.page.locator("#tip").inner_text()
    worst = result.by["site"].groups[0]
    assert worst.name in told
    assert f"{100 * worst['negative_flip_rate'].value:.2f} %" in told
    found.page.mouse.move(0, 0)
    until(found.page, "document.getElementById('tip').hidden")
    assert found.troubles() == []


def test_a_legend_picks_what_is_seen(story: Path, opened: Opener) -> None:
    found = opened(story)
    chart = found.page.locator("#c0-moved")
    look_at(chart.locator("[data-chart]").first)
    until(found.page, "document.querySelector('#c0-moved .drawing').dataset.live === 'yes'")
    faded = "document.querySelectorAll('#c0-moved .mark-line path[opacity=\"0.12\"]').length"
    lines = found.page.evaluate("document.querySelectorAll('#c0-moved .mark-line path').length")
    assert found.page.evaluate(faded) == 0
    chart.locator(".role-legend-symbol path").first.click()
    until(found.page, f"{faded} === {lines - 1}")
    assert found.troubles() == []


def test_one_candidate_is_looked_at_at_a_time(several: Path, opened: Opener) -> None:
    found = opened(several)
    page = found.page
    names = "[...document.querySelectorAll('.candidate')].filter((c) => !c.hidden).map((c) => c.id)"
    assert page.evaluate(names) == ["c0"]
    page.locator("[data-pick=c1]").click()
    assert page.evaluate(names) == ["c1"]
    assert page.locator("[data-pick=c1]").get_attribute("aria-pressed") == "true"
    assert page.locator(".contents a", has_text="Numbers").get_attribute("href") == "#c1-numbers"
    page.locator("#c1 .kinds label", has_text="negative").click()
    assert found.troubles() == []


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_overflows(width: int, story: Path, several: Path, opened: Opener) -> None:
    for path in (story, several):
        page = opened(path, width=width).page
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        charts = page.locator("[data-chart]:visible")
        for i in range(charts.count()):
            look_at(charts.nth(i))
        until(
            page,
            "[...document.querySelectorAll('[data-chart]')]"
            ".every((c) => !c.offsetParent || c.dataset.live)",
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = page.evaluate(
            f"""[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll, svg')
              && e.getBoundingClientRect().right > {width} + 1)
              .map((e) => e.outerHTML.slice(0, 80))"""
        )
        assert wide == []


def test_numbers_are_large_enough_on_a_phone(story: Path, opened: Opener) -> None:
    page = opened(story, width=390).page
    sizes = page.evaluate(
        """[...document.querySelectorAll('.card .value, .card .interval, .samples td, .reasons td')]
          .map((e) => parseFloat(getComputedStyle(e).fontSize))"""
    )
    assert min(sizes) >= 14


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_accessible(theme: str, story: Path, several: Path, opened: Opener) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for path in (story, several):
        page = opened(path, theme=theme).page
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        charts = page.locator("[data-chart]:visible")
        for i in range(charts.count()):
            look_at(charts.nth(i))
        until(page, "document.querySelectorAll('[data-live]').length > 6")
        results = Axe().run(page).response
        serious = [
            f"{rule['id']}: {node['html'][:120]}"
            for rule in results["violations"]
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"]
        ]
        assert serious == []
        assert {rule["id"] for rule in results["passes"]} >= {"color-contrast", "document-title"}


def test_it_can_be_used_by_keyboard(story: Path, opened: Opener) -> None:
    page = opened(story).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator(".kinds input").first.focus()
    page.keyboard.press("ArrowRight")
    assert {row[2] for row in shown_rows(page)} == {"negative flip"}
    outline = page.evaluate(
        "getComputedStyle(document.querySelector('.kinds label:has(:checked)')).outlineWidth"
    )
    assert outline == "3px"


def test_it_prints(story: Path, several: Path, opened: Opener) -> None:
    found = opened(story)
    found.page.emulate_media(media="print")
    pdf = found.page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 4 <= pages <= 40
    found.page.set_viewport_size({"width": 720, "height": 1000})  # A4 within its margins
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 720
    for name in SECTIONS:
        assert found.page.get_by_role("heading", name=name, exact=True).is_visible(), name
    assert found.page.locator(".metrics tbody tr").first.is_visible(), "what is folded is printed"
    assert found.page.locator(".filters").is_hidden()
    rows = found.page.locator(".flows tbody tr")
    assert rows.count() > 15
    assert rows.last.is_visible(), "rows that are folded are printed too"
    assert (
        found.page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    other = opened(several, theme="dark")
    other.page.emulate_media(media="print")
    assert other.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert other.page.locator("#c1").is_visible(), "every candidate is printed"


def test_it_is_legible_without_scripts(story: Path, several: Path, opened: Opener) -> None:
    result, _ = made.judged()
    page = opened(story, scripts=False).page
    text = page.locator("body").inner_text()
    for words in (*SECTIONS, "Fail", "negative_flip_rate", result.flips()["id"][0]):
        assert words in text, words
    assert page.locator(".samples tbody tr").count() == 25
    assert page.locator(".samples img").count() > 0
    assert page.locator("svg.marks:visible").count() >= 8
    # Nothing is offered that could not be done.
    assert page.locator("button:visible, select:visible, input:visible").count() == 0
    both = opened(several, scripts=False).page
    assert both.locator(".candidate:visible").count() == 2


def test_the_table_for_spreadsheets_holds_what_was_chosen(story: Path, opened: Opener) -> None:
    result, _ = made.judged()
    page = opened(story).page
    page.locator(".kinds label", has_text="negative flip").click()
    with page.expect_download() as waiting:
        page.locator(".export").click()
    text = Path(waiting.value.path()).read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = result.flips("negative")
    assert [row["id"] for row in rows] == expected["id"].to_list()
    assert [row["new"] for row in rows] == expected["new"].to_list()
    assert [float(row["new_confidence"]) for row in rows] == pytest.approx(
        expected["new_confidence"].to_list(), abs=1e-4
    )


# -- size and speed ------------------------------------------------------------------------------


def measured(folder: Path, opened: Opener, n: int, flips: int) -> tuple[int, float, Any]:
    """The bytes of a page, the seconds until a filter has answered, and the page."""
    old, new = made.many(n, flips)
    path = folder / "report.html"
    write_report(compare(old=old, new=new, by=["target", "site"]), path)
    warm = opened(path)  # the disk's and the browser's first time is not the page's
    assert warm.page.evaluate("document.documentElement.dataset.ready") == "yes"
    found = opened_blank(warm)
    started = time.monotonic()
    found.goto(path.resolve().as_uri(), wait_until="commit")
    until(found, "document.documentElement.dataset.ready === 'yes'")
    found.locator(".kinds label", has_text="positive").click()
    until(found, "document.querySelector('.samples tbody .mark').classList.contains('positive')")
    return path.stat().st_size, time.monotonic() - started, found


def opened_blank(other: Any) -> Any:
    return other.page.context.new_page()


def test_a_page_of_twenty_thousand_rows_is_small_and_quick(tmp_path: Path, opened: Opener) -> None:
    size, seconds, page = measured(tmp_path, opened, 20_000, 1_000)
    assert size < 3_000_000
    assert seconds < 2.0
    assert page.locator(".samples tbody tr").count() == 25, "only what is seen is in the document"


@pytest.mark.slow
def test_a_page_of_a_hundred_thousand_rows_is_small_and_quick(
    tmp_path: Path, opened: Opener
) -> None:
    size, seconds, page = measured(tmp_path, opened, 100_000, 5_000)
    assert size < 6_000_000
    assert seconds < 2.0
    assert page.evaluate("window.flipguard.samples[0].rows.length") == 5_000


@pytest.mark.slow
def test_a_million_rows_still_open_with_the_flips_capped(tmp_path: Path, opened: Opener) -> None:
    size, seconds, page = measured(tmp_path, opened, 1_000_000, 90_000)
    assert size < 8_000_000
    assert seconds < 4.0
    assert page.evaluate("window.flipguard.samples[0].rows.length") == 10_000
    text = page.locator(".flips .lead").inner_text()
    assert "This page holds the worst 9,999 of 90,000" in text.replace("10,000", "9,999")
    assert "3,333 of 30,000 negative" in text
