"""The report's size, how long it takes to write, and how soon it answers in a real browser.

    python benchmarks/report.py --out benchmarks/results/report.json

A page answers when a filter that is clicked at once has changed the table of samples. The browser
is Chromium, started once before, with the network off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.browsers import chromium
from tests.report import made
from tests.report.conftest import until

from flipguard import compare, write_report

SIZES = ((20_000, 1_000), (100_000, 5_000), (1_000_000, 90_000))
TIMES = 3


def measured(browser: Any, folder: Path, samples: int, flips: int) -> dict[str, Any]:
    old, new = made.many(samples, flips)
    path = folder / f"{samples}.html"
    result = compare(old=old, new=new, by=["target", "site"])
    began = time.monotonic()
    write_report(result, path)
    written = time.monotonic() - began
    context = browser.new_context(offline=True)
    context.new_page().goto(path.resolve().as_uri())
    seconds = []
    for _ in range(TIMES):
        page = context.new_page()
        began = time.monotonic()
        page.goto(path.resolve().as_uri(), wait_until="commit")
        until(page, "document.documentElement.dataset.ready === 'yes'")
        page.locator(".kinds label", has_text="positive").click()
        until(page, "document.querySelector('.samples tbody .mark').classList.contains('positive')")
        seconds.append(time.monotonic() - began)
        page.close()
    context.close()
    return {
        "samples": samples,
        "flips": flips,
        "bytes": path.stat().st_size,
        "seconds_to_write": round(written, 2),
        "seconds_to_answer": round(statistics.median(seconds), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        rows = []
        for samples, flips in SIZES:
            rows.append(measured(browser, Path(folder), samples, flips))
            print(rows[-1], flush=True)
        version = browser.version
    document = {
        "command": "python benchmarks/report.py --out FILE",
        "machine": {
            "device": f"{os.cpu_count()} cores",
            "browser": f"Chromium {version}",
            "python": platform.python_version(),
        },
        "rows": rows,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
