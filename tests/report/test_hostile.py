"""Labels, ids, texts and file names that mean harm are text, run nothing and break nothing."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipguard import Policy, Predictions, check, compare, write_report
from flipguard.render.numbers import script_json, short_labels, shown, visible, web_address
from flipguard.report.write import report_html
from tests.report.conftest import Opener, look_at, until
from tests.report.made import write_run

EVIL = (
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\" onmouseover=\"window.pwned=1\" x=\"",
    "'; window.pwned=1; //",
    "<svg onload=window.pwned=1>",
    "<!--<script>",
    "{{ 7*7 }}{% raw %}",
    "${alert(1)}",
    "\u202etxt.exe\u202c",
    "nul\x00bell\x07esc\x1b[31m",
    "line\u2028sep\u2029par\nnew",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\n=1+1",
    "\r=1+1",
    "javascript:window.pwned=1",
    "x" * 50_000,
    "ع‎ربي‏ mixed",
    "datum.x && (window.pwned=1)",
    "a.b[0]['c']\\",
)  # fmt: skip


def evil_update(*, texts: bool = True) -> Any:
    """Every hostile string as id, class, group, text, column and file name."""
    n = 4 * len(EVIL)
    names = [EVIL[i % len(EVIL)] for i in range(n)]
    target = [i % len(EVIL) for i in range(n)]
    rng = np.random.default_rng(0)
    columns = {EVIL[0]: names, EVIL[8]: names[::-1], "text": names}

    def made(name: str, shift: int) -> Predictions:
        logits = rng.normal(size=(n, len(EVIL)))
        logits[
            np.arange(n), [(t + shift * (i % 3 == 0)) % len(EVIL) for i, t in enumerate(target)]
        ] += 9
        return Predictions.from_arrays(
            ids=[f"{names[i]}#{i}" if i % 2 else f"{i}{names[i]}" for i in range(n)],
            targets=[EVIL[t] for t in target],
            logits=logits,
            class_names=EVIL,
            slices=columns,
            name=name,
        )

    return compare(
        old=made(f"old{EVIL[0]}", 0),
        new=made(f"new{EVIL[1]}", 1),
        control=made(f"control{EVIL[8]}", 2),
        by=[EVIL[0], EVIL[8], "target"],
    )


def evil_run(folder: Path) -> Path:
    """A run whose every name is hostile."""
    losses = dict.fromkeys(EVIL[:10], 1.0)
    write_run(folder, None, method=EVIL[0], old=[EVIL[1]], losses=losses)
    document = json.loads((folder / "run.json").read_text())
    document["config"] |= {"model": EVIL[2], "data": EVIL[4]}
    (folder / "run.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def evil_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil")
    result = evil_update()
    rule = {"metric": "negative_flip_rate", "by": EVIL[0], "max": 0.01}
    policy = Policy.from_dict({"rule": [rule]}, name=EVIL[1])
    write_report(
        {EVIL[0]: result, EVIL[1]: evil_update()},
        folder / "report.html",
        verdict={EVIL[0]: check(result, policy)},
        samples="text",
        runs=[evil_run(folder / "run")],
        title=EVIL[0],
        command=f"flipguard {EVIL[0]}",
    )
    return folder / "report.html"


@pytest.mark.parametrize("scripts", [True, False])
def test_nothing_hostile_runs(scripts: bool, evil_page: Path, opened: Opener) -> None:
    found = opened(evil_page, scripts=scripts)
    page = found.page
    if not scripts:
        assert page.locator(".samples").count() == 2
        assert "<script>window.pwned=1</script>" in page.locator("body").inner_text()
        return
    charts = page.locator("[data-chart]:visible")
    for i in range(charts.count()):
        look_at(charts.nth(i))
        charts.nth(i).hover()
    until(
        page,
        "[...document.querySelectorAll('[data-chart]')]"
        ".every((c) => !c.offsetParent || c.dataset.live)",
    )
    for search in ("script", "onerror", "‹U+202E›"):
        page.locator("#c0 input[type=search]").fill(search)
    page.locator("#c0 .reset").click()
    while page.locator("#c0 .next").is_enabled():
        page.locator("#c0 .next").click()
    page.locator("[data-pick=c1]").click()
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.scripts.length") == 5, "two flips, the charts, and two that run"
    assert page.evaluate("document.querySelectorAll('main script, main iframe').length") == 0
    assert page.evaluate(
        "[...document.querySelectorAll('*')].filter((e) => [...e.attributes]"
        ".some((a) => a.name.startsWith('on'))).length"
    ) == 0  # fmt: skip
    assert found.troubles() == []
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_names_are_read_as_they_are(evil_page: Path, opened: Opener) -> None:
    page = opened(evil_page).page
    text = page.locator("body").inner_text()
    assert "</script><script>window.pwned=1</script>" in text
    assert "<img src=x onerror=window.pwned=1>" in text
    assert "‹U+202E›txt.exe‹U+202C›" in text
    assert "nul␀bell␇esc␛[31m" in text
    assert "(50,000 characters)" in text
    assert "49" not in page.title()
    # Nothing in sight can turn the order of the words round it.
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x1b]", text)
    isolation = "getComputedStyle(document.querySelector('.samples th bdi')).unicodeBidi"
    assert page.evaluate(isolation) == "isolate"


def test_the_table_for_spreadsheets_holds_no_formula(evil_page: Path, opened: Opener) -> None:
    page = opened(evil_page).page
    text = page.evaluate("window.flipguard.samples[0].csv()")
    rows = list(csv.reader(io.StringIO(text)))
    cells = [cell for row in rows for cell in row]
    assert [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))] == []
    assert "'=cmd|' /C calc'!A0" in cells
    assert "'-2+3" in cells
    assert "'\n=1+1" in cells, "a text keeps its lines"
    assert len({len(row) for row in rows}) == 1


def test_only_addresses_of_the_web_become_links(tmp_path: Path, opened: Opener) -> None:
    addresses = ["https://example.org/a?b=<c>&d", 'http://example.org/"onclick=x'] * 3
    target = ["a"] * 5 + ["b"]
    old = Predictions.from_arrays(
        labels=["a"] * 6, targets=target, ids=range(6), slices={"url": addresses}
    )
    new = Predictions.from_arrays(labels=["b"] * 6, targets=target, ids=range(6))
    write_report(compare(old=old, new=new), tmp_path / "report.html", samples="url")
    page = opened(tmp_path / "report.html").page
    links = page.locator(".samples a")
    assert links.count() == 6
    assert [links.nth(i).inner_text() for i in range(2)] == addresses[:2]
    assert links.first.get_attribute("rel") == "noopener noreferrer"
    assert links.first.get_attribute("href") == addresses[0]


@pytest.mark.parametrize(
    ("text", "opens"),
    [
        ("https://example.org", True),
        ("HTTP://example.org/x", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("//example.org", False),
        ("https://user@example.org/", False),
        ("https://exa mple.org", False),
        ("https://example.org/\n", False),
        ("https:///x", False),
        ("file:///etc/passwd", False),
    ],
)
def test_what_counts_as_an_address(text: str, opens: bool) -> None:
    assert (web_address(text) is not None) == opens


def test_an_endless_text_is_cut_and_says_so() -> None:
    endless = "<b>" * 3_400_000
    shared: dict[str, Any] = {"targets": ["b", "a"], "ids": ["1", endless]}
    result = compare(
        old=Predictions.from_arrays(labels=["a", "a"], slices={"t": ["x", endless]}, **shared),
        new=Predictions.from_arrays(labels=["b", "b"], **shared),
        by=["t"],
    )
    page = report_html(result, samples="t")
    assert len(page) < 1_500_000
    assert "(10,200,000 characters)" in page
    assert "<b><b>" not in page
    assert len(result._repr_html_()) < 5_000


def test_names_of_bytes_that_are_no_text_are_written(tmp_path: Path) -> None:
    name = b"caf\xe9.csv".decode("utf-8", "surrogateescape")
    table = Predictions.from_arrays(labels=["a"], targets=["a"], name=name)
    write_report(compare(old=table, new=table), tmp_path / "report.html", title=name, command=name)
    assert "caf" in (tmp_path / "report.html").read_text(encoding="utf-8")


@given(st.text())
def test_what_is_shown_holds_nothing_that_steers(text: str) -> None:
    assert not re.search(
        "[\u202a-\u202e\u2066-\u2069\x00-\x1f\x7f-\x9f\u2028\u2029]", visible(text)
    )
    markup = str(shown(text))
    assert markup.startswith("<bdi>")
    assert not re.search("[<>\"']", markup.removeprefix("<bdi>").removesuffix("</bdi>"))
    markup.encode("utf-8")


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists))
def test_data_in_the_page_is_the_data_and_ends_no_script(value: Any) -> None:
    text = str(script_json(value))
    assert not re.search("[<>&\u2028\u2029]", text)
    halves = re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == json.loads(halves)


@given(st.lists(st.text(max_size=60) | st.sampled_from(["a", "a (2)", "a (3)"]), max_size=8))
def test_labels_of_a_chart_stay_apart(names: list[str]) -> None:
    labels = short_labels(names)
    assert len(set(labels)) == len(names)
    assert all(len(label) <= 32 for label in labels)


def test_a_notebook_shows_text_and_runs_nothing() -> None:
    text = evil_update()._repr_html_()
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;/script&gt;" in text
    assert not re.search("[\u202a-\u202e\x00-\x08]", text)
    tags = set(re.findall(r"<(\w+)", text))
    known = ["div", "p", "b", "br", "bdi", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"]
    assert tags <= set(known)


def test_the_policy_names_the_hash_of_all_that_runs(evil_page: Path) -> None:
    import base64
    import hashlib

    text = evil_page.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in policy[1]
    run = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", text, flags=re.DOTALL)
    assert (len(run), len(style)) == (2, 1)

    def digest(part: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"

    assert rules["script-src"].split() == [digest(part) for part in run]
    assert rules["style-src"].split() == [digest(part) for part in style]
    assert not re.search(r"\sstyle=", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))


def test_the_flips_file_keeps_what_was_in_the_predictions(tmp_path: Path) -> None:
    """A file for machines is exact: it is the page's table for spreadsheets that is guarded."""
    from flipguard.cli.output import write_table

    flips = evil_update().flips()
    write_table(flips, str(tmp_path / "flips.parquet"))
    assert pl.read_parquet(tmp_path / "flips.parquet")["id"].to_list() == flips["id"].to_list()
    assert any(name.startswith("=") for name in flips["id"])


def test_a_label_that_reads_like_an_attribute_is_drawn_whole() -> None:
    names = ['a role="b"', 'c id="clip0"']
    target = names * 20
    old = Predictions.from_arrays(labels=target, targets=target)
    new = Predictions.from_arrays(labels=names[::-1] * 20, targets=target)
    page = unescape(report_html(compare(old=old, new=new)).split('<script type="application')[0])
    drawing = page[page.index('id="c0-groups-0"') :].split("</svg>")[0]
    for name in names:
        assert f">{name}<" in drawing
    assert drawing.count("role=") == 2, "the picture's own, and the label's"
