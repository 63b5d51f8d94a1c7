"""Build flipguard, install it into empty environments, and try what an environment promises.

Used by the tests, and by `benchmarks/installs.py`, which records sizes and versions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("report", "spark", "train")


# Files of every format are written, read and compared; all must give the same counts.
FORMATS = """
import pathlib, sys
import numpy as np
import flipguard as fg

folder = pathlib.Path(sys.argv[1])
random = np.random.default_rng(0)
n = 300
target = random.integers(0, 3, n)
made = {
    name: fg.Predictions.from_arrays(
        ids=[f"id{i}" for i in range(n)],
        targets=[["cat", "dog", "owl"][i] for i in target],
        logits=np.eye(3)[target] * 1.5 + random.normal(size=(n, 3)),
        class_names=["cat", "dog", "owl"],
        slices={"site": ["a", "b", "c"] * 100},
    )
    for name in ("old", "new")
}
counts = []
for suffix in "csv tsv jsonl csv.gz csv.zst jsonl.gz jsonl.zst parquet arrow npz".split():
    paths = {name: folder / f"{name}.{suffix}" for name in made}
    for name, path in paths.items():
        fg.write_predictions(made[name], path)
    old, new = (fg.read_predictions(paths[name]) for name in ("old", "new"))
    counts.append(fg.compare(old=old, new=new, by=["site"]).counts)
assert all(one == counts[0] for one in counts), counts
"""

POLICY = """
[[rule]]
metric = "negative_flip_rate"
max = 0.9
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that holds flipguard and what it needs, and nothing else."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: object, within: Path) -> str:
        """The output of one of the environment's commands; raise if it fails."""
        return ran(self.folder / "bin" / str(command[0]), *command[1:], within=within)

    def versions(self) -> dict[str, str]:
        """The installed version of every package."""
        listed = ran(uv(), "pip", "list", "--format", "json", "--python", self.python)
        return {one["name"]: one["version"] for one in json.loads(listed)}

    def size(self) -> dict[str, int]:
        """The size of every top-level entry of site-packages, in bytes."""
        (packages,) = self.folder.glob("lib/python*/site-packages")
        return {
            entry.name: sum(p.lstat().st_size for p in (entry, *entry.rglob("*")) if p.is_file())
            for entry in packages.iterdir()
        }


def uv() -> str:
    """The path of uv: next to this Python, or on the machine."""
    here = Path(sys.executable).with_name("uv")
    found = str(here) if here.exists() else shutil.which("uv")
    if found is None:
        raise RuntimeError("uv is not installed; `make setup` installs it.")
    return found


def ran(*command: object, within: Path | None = None) -> str:
    """The output of a command; raise with all of it if the command fails."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=within,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = " ".join(str(part) for part in command)
        raise RuntimeError(f"{told} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive, built from a copy of the checkout."""
    copy = folder / "checkout"
    listed = ran("git", "ls-files", "--cached", "--others", "--exclude-standard", within=ROOT)
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    out = folder / "dist"
    # The wheel is built from the source archive, so that both hold the same.
    ran(uv(), "build", "--quiet", "--no-build-isolation", "--python", sys.executable,
        "--out-dir", out, within=copy)  # fmt: skip
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, archive


def interpreter(version: str) -> Path | None:
    """A Python of this version, such as "3.12", if the machine has one."""
    candidates = [Path(sys.executable)]
    if found := shutil.which(f"python{version}"):
        candidates.append(Path(found))
    candidates += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for python in candidates:
        try:
            told = ran(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        except (OSError, RuntimeError):
            continue
        if told.strip() == version:
            return python
    return None


def pins(python: Path, resolution: str, extra: str | None) -> str:
    """Exact versions of everything that flipguard with this extra needs; uv names resolutions."""
    return ran(
        *(uv(), "pip", "compile", ROOT / "pyproject.toml", *(("--extra", extra) if extra else ())),
        *("--quiet", "--resolution", resolution, "--python", python, "--no-header"),
        *("--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
    )


def install(
    folder: Path, wheel: Path, extra: str | None, *options: object, python: Path | None = None
) -> Environment:
    """A new environment with the wheel and one extra; `options` are those of `uv pip install`."""
    ran(uv(), "venv", "--quiet", "--python", python or sys.executable, folder)
    environment = Environment(folder)
    asked = f"flipguard{f'[{extra}]' if extra else ''} @ {wheel.resolve().as_uri()}"
    ran(uv(), "pip", "install", "--quiet", "--python", environment.python, *options, asked)
    return environment


def try_base(environment: Environment, folder: Path) -> None:
    """Every format, and the commands of the base install; none of them needs torch."""
    absent = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is not None)"
    environment.run("python", "-c", absent, within=folder)
    environment.run("python", "-W", "error", "-c", FORMATS, folder, within=folder)
    assert "elodi" in environment.run("flipguard", "methods", within=folder)
    assert "alpha" in environment.run("flipguard", "methods", "elodi", within=folder)
    assert "churn" in environment.run("flipguard", "metrics", within=folder)
    files = ("old.parquet", "new.csv.zst")
    told = environment.run("flipguard", "compare", *files, "--by", "site", "--flips", "f.csv.gz",
                           "--json", "c.json", "--markdown", "c.md", within=folder)  # fmt: skip
    assert "negative_flip_rate" in told
    (folder / "gate.toml").write_text(POLICY)
    told = environment.run("flipguard", "gate", *files, "--policy", "gate.toml", within=folder)
    assert told.startswith("PASS")
    with pytest.raises(RuntimeError, match=r"needs pyarrow, .*: pip install '\.\[spark\]'"):
        environment.run("flipguard", "compare", *files, "--engine", "spark", within=folder)


def try_report(environment: Environment, folder: Path) -> None:
    """A page with charts, and a picture of a matrix."""
    environment.run("python", "-c", FORMATS, folder, within=folder)
    files = ("old.parquet", "new.arrow")
    environment.run("flipguard", "compare", *files, "--html", "r.html", within=folder)
    assert "<svg" in (folder / "r.html").read_text()
    environment.run("flipguard", "matrix", *files, "--plot", "m.png", within=folder)
    assert (folder / "m.png").stat().st_size > 1000


def try_spark(environment: Environment, folder: Path) -> None:
    """Counting by Spark gives the same as counting by this machine."""
    environment.run("python", "-c", FORMATS, folder, within=folder)
    files = ("old.parquet", "new.csv")
    documents = []
    for engine in ("local", "spark"):
        environment.run("flipguard", "compare", *files, "--engine", engine, "--json",
                        f"{engine}.json", within=folder)  # fmt: skip
        documents.append(json.loads((folder / f"{engine}.json").read_text())["metrics"])
    assert documents[0] == documents[1]


def try_train(environment: Environment, folder: Path) -> None:
    """An old model and an update that is held to it, and their comparison."""
    small = (
        "--data",
        "mnist1d:train=200,test=200",
        "--model",
        "mlp:hidden=8",
        "--set",
        "recipe.epochs=2",
    )
    for name, more in (("old", ()), ("new", ("--method", "fd-lm", "--old", "old"))):
        environment.run("flipguard", "train", *small, *more, "--out", name, within=folder)
    files = (f"{name}/predictions/test.npz" for name in ("old", "new"))
    told = environment.run("flipguard", "compare", *files, within=folder)
    assert "negative_flip_rate" in told


TRIES = {None: try_base, "report": try_report, "spark": try_spark, "train": try_train}
