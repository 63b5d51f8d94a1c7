"""A real browser without a network, and pages to open in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flipguard import write_report
from tests.browsers import chromium
from tests.report import made
from tests.test_cli import run  # noqa: F401 (a fixture, of the command line)

# Collects what the page's own policy refuses, from the first moment on.
WATCH = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


@dataclass
class Opened:
    """A page in a browser, and everything that went wrong in it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def troubles(self) -> list[str]:
        """Errors, refusals and requests so far."""
        return [*self.complaints, *self.requests, *self.page.evaluate("window.refused || []")]


Opener = Callable[..., Opened]


def until(page: Any, expression: str, *, seconds: float = 60.0) -> None:
    """Waits until an expression is true.

    Not by Playwright's own waiting, which compiles text inside the page, against its policy.
    """
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"{expression} did not become true"
        page.wait_for_timeout(20)


def look_at(chart: Any, *, seconds: float = 60.0) -> None:
    """Scrolls to a chart, and waits until it is drawn.

    Not by Playwright's own scrolling, which waits for two frames in which nothing moves: while a
    page draws and the machine is busy, they may not come for half a minute.
    """
    chart.page.bring_to_front()  # pages in the background draw nothing
    deadline = time.monotonic() + seconds
    while True:
        chart.evaluate("(e) => e.scrollIntoView({block: 'center'})")
        if chart.evaluate("(e) => !e.offsetParent || Boolean(e.dataset.live)"):
            return
        assert time.monotonic() < deadline, "a chart that is looked at was not drawn"
        chart.page.wait_for_timeout(20)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser: Any) -> Iterator[Opener]:
    """Opens a page from disk with the network off."""
    contexts = []

    def open_page(
        path: Path, *, width: int = 1440, theme: str = "light", scripts: bool = True
    ) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            java_script_enabled=scripts,
            offline=True,
            accept_downloads=True,
        )
        contexts.append(context)
        context.add_init_script(WATCH)
        page = context.new_page()
        result = Opened(page)
        page.on(
            "console",
            lambda m: result.complaints.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: result.complaints.append(str(error)))
        page.on("dialog", lambda d: (result.complaints.append(f"dialog {d.message}"), d.dismiss()))
        page.on("popup", lambda _: result.complaints.append("popup"))
        page.on(
            "request",
            lambda r: (
                None if r.url.startswith(("file:", "data:")) else result.requests.append(r.url)
            ),
        )
        page.goto(path.resolve().as_uri())
        return result

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One update: verdict, control, groups, pictures within a budget that is too small, a run."""
    folder = tmp_path_factory.mktemp("story")
    result, verdict = made.judged()
    images = made.write_images(folder / "images", result.flips()["id"].to_list(), side=40)
    folder_of_run = made.write_run(folder / "run", None, method="fd-lm", old=["v1"])
    write_report(
        result,
        folder / "report.html",
        verdict=verdict,
        samples=images,
        samples_budget="400KB",
        runs=[folder_of_run],
        command="flipguard gate old.parquet new.parquet --html report.html",
    )
    return folder / "report.html"


@pytest.fixture(scope="package")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two candidates with a control, by name."""
    from flipguard import Policy, check, compare

    folder = tmp_path_factory.mktemp("several")
    found = made.models(600, names=("old", "first", "second", "control"))
    results = {
        name: compare(
            old=found["old"], new=found[name], control=found["control"], by=["site", "target"]
        )
        for name in ("first", "second")
    }
    verdicts = {n: check(r, Policy.from_dict(made.policy())) for n, r in results.items()}
    write_report(results, folder / "report.html", verdict=verdicts)
    return folder / "report.html"
