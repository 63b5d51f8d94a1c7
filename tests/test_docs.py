"""The documentation is true: its Python runs, its generated pages are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flipguard import METRICS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if "```python" in path.read_text()
)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_a_page_runs(page, tmp_path, monkeypatch, prediction_files):
    """All blocks of a page, one after the other, in a folder with the files that pages speak of."""
    monkeypatch.chdir(prediction_files)
    code = "\n".join(blocks(page, "python"))
    exec(compile(code, str(page), "exec"), {"__name__": "docs"})


@pytest.fixture
def prediction_files(tmp_path):
    """old.parquet, new.parquet and gate.toml, as the README has them."""
    import numpy as np

    import flipguard as fg

    rng = np.random.default_rng(0)
    signs = ["stop", "yield", "parking"]
    target = rng.integers(0, 3, 3_000)
    for name, noise in (("old", 1.0), ("new", 1.1)):
        logits = rng.standard_normal((3_000, 3)) * noise
        logits[np.arange(3_000), target] += 6
        predictions = fg.Predictions.from_arrays(
            ids=np.arange(3_000),
            targets=[signs[i] for i in target],
            logits=logits,
            class_names=signs,
        )
        fg.write_predictions(predictions, tmp_path / f"{name}.parquet")
    policies = blocks(ROOT / "README.md", "toml")
    (tmp_path / "gate.toml").write_text(policies[0])
    (tmp_path / "must_stay_right.csv").write_text("id\n1\n2\n")
    return tmp_path


@pytest.mark.parametrize("page", ["README.md", "docs/gate.md"])
def test_policies_on_a_page_are_valid(page, tmp_path):
    from flipguard import Policy

    for i, text in enumerate(blocks(ROOT / page, "toml")):
        path = tmp_path / f"{i}.toml"
        path.write_text(text)
        assert Policy.read(path).rules


def test_generated_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "build.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_metric_has_a_card():
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^## `(\w+)`$", page, flags=re.MULTILINE) == list(METRICS)


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_demo_tells_its_story_and_the_readme_shows_it(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "flipguard-demo" / "flips.csv").exists()

    # The table on the README's first screen is the demo's own, to the letter.
    shown = blocks(ROOT / "README.md", "console")[0].splitlines()
    printed = done.stdout.splitlines()
    for line in shown[1:]:
        assert line == "  …" or line.rstrip() in [text.rstrip() for text in printed], line
