"""Where flipguard installs and works: Python versions, extras, lowest and newest dependencies.

    python benchmarks/installs.py --out benchmarks/results/installs.json

Each row is one new environment, made from the wheel and removed again. `lowest` has the lowest
version that pyproject.toml allows of each direct dependency, `newest` the newest one. What the
extra promises is tried (`tests/installing.py`). With lowest versions and the extra `report`, the
tests of the evidence side run as well.

`--download` sums up the sizes of all wheels that the lock names for this machine, which is what
`make demo` and `make test` download at first.

`--python`, `--versions` and `--extra` choose some of the rows; the file keeps all others. A Python
that the machine does not have is left out, and named in the file.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import sys
import tempfile
import time
import tomllib
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests import installing  # noqa: E402

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
EXTRAS = ("base", *installing.EXTRAS)
LOWEST_PYTHON = PYTHONS[0]
# What the tests below need next to flipguard; in the newest versions that fit.
TOOLS = ("duckdb", "hypothesis", "pandas", "psutil", "pyarrow", "pytest", "pytest-timeout")
TOOLS += ("pytest-xdist", "scikit-learn", "statsmodels")
EVIDENCE = (
    *("controls", "corrections", "counts", "doubts", "ensemble", "equality", "gate", "identical"),
    *("joining", "markdown", "matrix", "means", "metric_kinds", "metrics", "one_pass"),
    *("planning", "plots", "policy", "reading", "write", "exact_reading"),
)


def direct() -> set[str]:
    """The names of the packages that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = (project["dependencies"], *project["optional-dependencies"].values())
    return {re.split(r"[<>=;\[ ]", one)[0] for many in lists for one in many}


def tested(environment: installing.Environment, constraints: Path) -> dict[str, int]:
    """Run the tests of the evidence side; return how many passed, failed and were skipped.

    Old libraries call what newer ones have deprecated, so those warnings are no errors here.
    """
    installing.ran(
        *(installing.uv(), "pip", "install", "--quiet", "--python", environment.python),
        *("--constraints", constraints, *TOOLS),
    )
    files = [f"tests/test_{name}.py" for name in EVIDENCE] + ["tests/statistics"]
    try:
        told = environment.run("pytest", "-q", "-n", "2", "-m", "not slow", "--tb", "short",
                               "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning",
                               *files, within=ROOT)  # fmt: skip
    except RuntimeError as problem:
        told = str(problem)
        print(told, flush=True)
    return {
        kind: int(found[1]) if (found := re.search(rf"(\d+) {kind}", told)) else 0
        for kind in ("passed", "failed", "error", "skipped")
    }


def download() -> dict[str, Any]:
    """How many packages the lock names for this machine, and how many bytes they are."""
    lock = tomllib.loads(
        installing.ran(
            *(installing.uv(), "pip", "compile", ROOT / "requirements.lock", "--no-deps"),
            *("--format", "pylock.toml", "--quiet", "--python", sys.executable),
        )
    )
    order = {tag: i for i, tag in enumerate(sys_tags())}

    def address(package: dict[str, Any]) -> str:
        """The best wheel for this machine, else the source archive."""
        ranks = []
        for wheel in package.get("wheels", []):
            tags = parse_wheel_filename(Path(urllib.parse.urlparse(wheel["url"]).path).name)[3]
            ranks += [(order[tag], wheel["url"]) for tag in tags if tag in order]
        return min(ranks)[1] if ranks else package["sdist"]["url"]

    def size(url: str) -> int:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.headers["Content-Length"])

    wanted = [
        address(package)
        for package in lock["packages"]
        if "marker" not in package or Marker(package["marker"]).evaluate()
    ]
    with ThreadPoolExecutor(6) as pool:
        return {"packages": len(wanted), "bytes": sum(pool.map(size, wanted))}


def measured(wheel: Path, python: Path, versions: str, extra: str, folder: Path) -> dict[str, Any]:
    """One row: make the environment, try it, and say what it holds."""
    (folder / "work").mkdir(parents=True)
    constraints = folder / "pins.txt"
    chosen = None if extra == "base" else extra
    constraints.write_text(installing.pins(python, RESOLUTIONS[versions], chosen))
    environment = installing.install(
        folder / "env", wheel, chosen, "--constraints", constraints, python=python
    )
    sizes, found = environment.size(), environment.versions()
    python_version = "import platform; print(platform.python_version())"
    row: dict[str, Any] = {
        "python": environment.run("python", "-c", python_version, within=folder).strip(),
        "versions": versions,
        "extra": extra,
        "megabytes": round(sum(sizes.values()) / 1e6),
        "packages": {name: found[name] for name in sorted(direct()) if name in found},
        "all_packages": len(found),
    }
    try:
        installing.TRIES[chosen](environment, folder / "work")
        row["works"] = True
    except (AssertionError, RuntimeError) as problem:
        row |= {"works": False, "problem": " ".join(str(problem).split())[-600:]}
    if versions == "lowest" and extra == "report":
        row["tests"] = tested(environment, constraints)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=PYTHONS)
    parser.add_argument("--versions", nargs="+", choices=RESOLUTIONS, default=[*RESOLUTIONS])
    parser.add_argument("--extra", nargs="+", choices=EXTRAS, default=EXTRAS)
    parser.add_argument("--download", action="store_true")
    given = parser.parse_args()
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    rows = {(row["python"][:4], row["versions"], row["extra"]): row for row in kept.get("rows", [])}
    if given.download:
        given.out.write_text(json.dumps(kept | {"download": download()}, indent=1) + "\n")
        return
    with tempfile.TemporaryDirectory() as scratch:
        wheel, archive = installing.build(Path(scratch))
        for version in given.python:
            python = installing.interpreter(version)
            for versions in given.versions if python else ():
                if versions == "lowest" and version != LOWEST_PYTHON:
                    continue
                for extra in given.extra:
                    began, folder = time.monotonic(), Path(scratch) / "one"
                    row = measured(wheel, python, versions, extra, folder)
                    rows[version, versions, extra] = row
                    shutil.rmtree(folder)
                    print(version, versions, extra, row["megabytes"], row["works"],
                          row.get("problem", ""), row.get("tests", ""),
                          f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
                    _write(given.out, rows, wheel, archive)


def _write(out: Path, rows: dict[Any, Any], wheel: Path, archive: Path) -> None:
    missing = [version for version in PYTHONS if installing.interpreter(version) is None]
    kept = json.loads(out.read_text()) if out.exists() else {}
    document = kept | {
        "command": "python benchmarks/installs.py --out FILE",
        "machine": {"system": platform.system(), "cpu": platform.machine()},
        "bytes": {"wheel": wheel.stat().st_size, "source archive": archive.stat().st_size},
        "no_interpreter": missing,
        "rows": [rows[key] for key in sorted(rows, key=str)],
    }
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
