"""The built package: the same bytes each time, complete, and at work in empty environments."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import flipguard
from tests import installing
from tests.installing import EXTRAS, LOCK, ROOT, TRIES

Built = tuple[Path, Path]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return installing.build(tmp_path_factory.mktemp("first"))


def test_a_build_gives_the_same_bytes_each_time(built: Built, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        again = installing.build(tmp_path)
    finally:
        os.umask(before)
    assert [path.name for path in again] == [path.name for path in built]
    for one, other in zip(built, again, strict=True):
        first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (one, other))
        assert first == second, one.name


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    names = set(zipfile.ZipFile(built[0]).namelist())
    source = ROOT / "src"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/flipguard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    expected = {str((ROOT / name).relative_to(source)) for name in listed}
    own = {name for name in names if not re.match(r"flipguard-[\d.]+\.dist-info/", name)}
    assert own == expected
    assert "flipguard/py.typed" in own


def test_the_source_archive_holds_what_its_tests_need(built: Built) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "SECURITY.md", "CITATION.cff"} <= names
    assert {"Makefile", "requirements.lock", "src/flipguard/__init__.py"} <= names
    assert "tests/test_install.py" in names


def test_twine_finds_no_fault(built: Built) -> None:
    told = installing.ran(sys.executable, "-m", "twine", "check", "--strict", *built)
    assert told.count("PASSED") == 2


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == flipguard.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["license"] == project["license"]
    assert citation["title"] == project["name"]
    assert citation["keywords"] == project["keywords"]
    assert [one["name"] for one in citation["authors"]] == [
        one["name"] for one in project["authors"]
    ]


def test_the_wheel_works_in_an_empty_environment(built: Built, tmp_path: Path) -> None:
    # In the versions of the lock, which `make setup` has left in the cache.
    environment = installing.install(tmp_path / "env", built[0], None, "--constraints", LOCK)
    assert not {"torch", "pyarrow", "pandas"} & set(environment.versions())
    installing.try_base(environment, tmp_path)


def test_make_says_how_much_it_downloads() -> None:
    measured = json.loads((ROOT / "benchmarks/results/installs.json").read_text())["download"]
    told = f"downloads {measured['bytes'] / 1e9:.1f} GB"
    assert told in (ROOT / "Makefile").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("extra", [None, *EXTRAS])
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_extra_works_on_every_python(
    built: Built, version: str, extra: str | None, tmp_path: Path
) -> None:
    python = installing.interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    environment = installing.install(tmp_path / "env", built[0], extra, python=python)
    TRIES[extra](environment, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_every_extra_works_with_the_lowest_versions(
    built: Built, extra: str | None, tmp_path: Path
) -> None:
    python = installing.interpreter("3.11")
    if python is None:
        pytest.skip("there is no Python 3.11 on this machine")
    pins = tmp_path / "pins.txt"
    pins.write_text(installing.pins(python, "lowest-direct", extra))
    environment = installing.install(
        tmp_path / "env", built[0], extra, "--constraints", pins, python=python
    )
    TRIES[extra](environment, tmp_path)
