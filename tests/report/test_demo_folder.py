"""The folder of the demo: nobody's own files are overwritten, and nothing is trained in vain."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from flipguard.cli.demo import NEEDED
from tests.test_cli import Run


@pytest.mark.parametrize("name", ["gate.toml", "report.html", "samples.npz"])
def test_a_folder_with_files_of_ones_own_is_refused(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    ran = run("demo", "--out", ".")
    assert ran.code == 2
    told = " ".join(ran.err.split())
    assert f"but {name} is not from a demo and would be overwritten; choose another" in told
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(("module", "package", "extra"), NEEDED)
def test_what_is_missing_is_told_before_anything_is_trained(
    module: str, package: str, extra: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "flipguard.cli.demo.find_spec", lambda name: None if name == module else found(name)
    )
    ran = run("demo", "--out", "d")
    assert ran.code == 2
    assert f"The demo needs {package}" in ran.err
    assert not (tmp_path / "d").exists()
