"""The command line, as a user and as a script see it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import typer
from rich.cells import cell_len

from flipguard import METRICS
from flipguard.cli import main
from flipguard.cli.commands import app
from flipguard.render.words import KEY_METRICS
from tests.conftest import Saver
from tests.designed import Flips

ESCAPE = "\x1b"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs flipguard in this process, in its own folder and at 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["flipguard", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capfd.readouterr()
        code = stopped.value.code
        return Ran(code if isinstance(code, int) else 0 if code is None else 1, out, err)

    return call


def process(folder: Path, *arguments: str, **environment: str) -> Ran:
    """Runs flipguard as a separate program."""
    done = subprocess.run(
        [sys.executable, "-m", "flipguard", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def save_update(
    save: Saver, groups: Flips | dict[str, Flips], *, column: str = "site"
) -> tuple[str, str]:
    """old.csv and new.csv with these flips."""
    named = groups if isinstance(groups, dict) else {"north": groups}
    rows = [(name, *row) for name, flips in named.items() for row in flips.rows()]
    ids = [f"s{i}" for i in range(len(rows))]
    shared = {"id": ids, "target": [row[1] for row in rows]}
    save("old.csv", {**shared, "label": [row[2] for row in rows], column: [r[0] for r in rows]})
    save("new.csv", {**shared, "label": [row[3] for row in rows]})
    return "old.csv", "new.csv"


def write_policy(folder: Path, text: str) -> str:
    (folder / "gate.toml").write_text(text, encoding="utf-8")
    return "gate.toml"


THOUSAND = Flips(both_right=800, negative=20, positive=30, wrong_same=100, wrong_different=50)


def save_scored(save: Saver, n: int = 300, classes: int = 3) -> list[str]:
    """Five models of one recipe, with logits, in Parquet."""
    rng = np.random.default_rng(0)
    target = rng.integers(0, classes, n)
    shared = rng.normal(size=(n, classes)) + 2 * np.eye(classes)[target]
    names = []
    for name in ("old", "new", "c0", "c1", "c2"):
        logits = shared + rng.normal(size=(n, classes))
        columns: dict[str, object] = {
            "id": list(range(n)),
            "target": target.tolist(),
            "site": [("north", "south")[i % 2] for i in range(n)],
            "user": [i % 60 for i in range(n)],
        }
        columns |= {f"logit_{c}": logits[:, c].tolist() for c in range(classes)}
        save(f"{name}.parquet", columns)  # type: ignore[arg-type]
        names.append(f"{name}.parquet")
    return names


def lines_wider_than(text: str, columns: int) -> list[str]:
    return [line for line in text.splitlines() if cell_len(line) > columns]


# -- the surface ---------------------------------------------------------------------------------

# Names that users and scripts rely on. A change here is a change of the product.
COLUMNS_OF_TABLES = {"--id", "--target", "--label"}
SCORES = {"--positive-score", "--threshold", "--threshold-new", "--positive"}
SIDES = {"--label-old", "--label-new", "--name-old", "--name-new"} | COLUMNS_OF_TABLES | SCORES
COMMANDS = {
    "compare": {
        "--all",
        "--correct",
        "--by",
        "--control",
        "--cluster",
        "--json",
        "--markdown",
        "--flips",
        "--html",
        "--samples",
        "--samples-budget",
        "--on-missing",
        "--confidence",
        "--correction",
        "--exponent",
        "--engine",
        *SIDES,
    },
    "init": {"--old", "--control", "--out", "--correct", "--on-missing", *COLUMNS_OF_TABLES},
    "gate": {
        "--policy",
        "--correct",
        "--by",
        "--control",
        "--cluster",
        "--json",
        "--markdown",
        "--flips",
        "--html",
        "--samples",
        "--samples-budget",
        "--on-missing",
        "--correction",
        "--exponent",
        "--engine",
        *SIDES,
    },
    "report": {
        "--out",
        "--old",
        "--control",
        "--policy",
        "--by",
        "--samples",
        "--samples-budget",
        "--on-missing",
        "--confidence",
    },
    "matrix": {"--json", "--plot", "--correct", "--on-missing", *COLUMNS_OF_TABLES},
    "ensemble": {"--out", "--on-missing", *COLUMNS_OF_TABLES},
    "train": {
        "--method",
        "--data",
        "--model",
        "--out",
        "--old",
        "--seed",
        "--config",
        "--set",
        "--fix",
        "--fuse",
        "--resume",
        "--allow-code",
    },
    "analyze": {
        *("--old", "--new", "--treated", "--judge", "--members"),
        *("--draws", "--seed", "--sample", "--top", "--exponent"),
        *("--json", "--plot", "--theme", "--id", "--target", "--on-missing"),
    },
    "adopt": {
        "--model",
        "--weights",
        "--data",
        "--classes",
        "--out",
        "--input-size",
        "--resize",
        "--interpolation",
        "--mean",
        "--std",
        "--data-root",
        "--device",
        "--allow-code",
    },
    "predict": {"--split", "--out", "--allow-code"},
    "study": set(),  # its subcommands have their own tests
    "demo": {"--out", "--seed"},
    "methods": {"--json"},
    "metrics": {"--json"},
}


def flags() -> dict[str, set[str]]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {
        name: {
            option
            for parameter in command.params
            for option in parameter.opts
            if option.startswith("-") and option not in ("-h", "--help")
        }
        for name, command in commands.items()
    }


def test_the_commands_and_flags_are_the_documented_ones() -> None:
    assert flags() == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_every_flag(command: str, run: Run) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"Example: flipguard {command}" in ran.out
    assert [flag for flag in COMMANDS[command] if flag not in ran.out] == []
    assert lines_wider_than(ran.out, 80) == []
    assert run(command, "-h").out == ran.out


def test_the_program_lists_its_commands(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    assert [command for command in COMMANDS if command not in ran.out] == []


def test_the_version(run: Run) -> None:
    from flipguard import __version__

    assert run("--version").out == f"flipguard {__version__}\n"


def test_metrics_are_listed_on_the_terminal_and_as_json(run: Run) -> None:
    ran = run("metrics")
    assert ran.code == 0
    assert [name for name in METRICS if not re.search(rf"^{name}\s+\S", ran.out, re.M)] == []
    assert lines_wider_than(ran.out, 80) == []
    rows = json.loads(run("metrics", "--json").out)
    assert [row["name"] for row in rows] == list(METRICS)
    for row in rows:
        assert set(row) == {"name", "sentence", "formula", "needs", "better"}
        assert row["sentence"].endswith(".")
        assert row["better"] in ("lower", "higher", "neither")


# -- compare -------------------------------------------------------------------------------------


def test_compare_tells_what_breaks(run: Run, save: Saver) -> None:
    ran = run("compare", *save_update(save, THOUSAND))
    assert (ran.code, ran.err) == (0, "")
    assert "fixes 30 of 1,000 samples and breaks 20" in " ".join(ran.out.split())
    assert re.search(r"^ +negative_flip_rate +2\.00 % +1\.\d\d to 3\.\d\d +1,000$", ran.out, re.M)
    assert re.search(r"^ +accuracy_gain +\+1\.00 points ", ran.out, re.M)
    assert re.search(r"^ +old right +800 +20 ", ran.out, re.M)
    assert re.search(r"^ +old wrong +30 +150 +50 change to another wrong class", ran.out, re.M)
    assert metrics_shown(ran.out) == list(KEY_METRICS)
    # What the files do not hold is not shown, even with all metrics.
    shown = metrics_shown(run("compare", *save_update(save, THOUSAND), "--all").out)
    assert set(KEY_METRICS) < set(shown)
    assert shown == [name for name in METRICS if METRICS[name].needs <= {"target", "label"}]


def joined(text: str) -> str:
    """The words of a text, on one line."""
    return " ".join(text.split())


def metrics_shown(output: str) -> list[str]:
    """The names in the table of metrics."""
    return [name for name in re.findall(r"^  (\w+) ", output, re.M) if name in METRICS]


def test_a_separate_program_says_the_same(run: Run, save: Saver, tmp_path: Path) -> None:
    files = save_update(save, THOUSAND)
    here, there = run("compare", *files), process(tmp_path, "compare", *files)
    assert there == here


def test_by_may_be_repeated(run: Run, save: Saver) -> None:
    old, new, *_ = save_scored(save)
    ran = run("compare", old, new, "--by", "target", "--by", "site", "--json", "out.json")
    assert re.findall(r"By (\w+): (\d+) groups", ran.out) == [("target", "3"), ("site", "2")]
    document = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert {column: set(groups) for column, groups in document["by"].items()} == {
        "target": {"0", "1", "2"},
        "site": {"north", "south"},
    }


def test_several_controls_show_what_a_retrain_does(run: Run, save: Saver) -> None:
    old, new, *controls = save_scored(save)
    given = [part for control in controls for part in ("--control", control)]
    ran = run("compare", old, new, *given, "--json", "out.json")
    assert "Compared with 3 retrains" in ran.out
    assert re.search(r"negative_flip_rate .* (as|more than|less than) a retrain would", ran.out)
    assert re.search(r"^ +churn_ratio +\d\.\d{3} ", ran.out, re.M)
    document = json.loads(Path("out.json").read_text(encoding="utf-8"))
    floor = document["noise_floor"]["negative_flip_rate"]
    values = [c["counts"]["negative_flip"] / 300 for c in document["controls"]]
    assert floor["controls"] == pytest.approx(values)
    assert floor["low"] <= min(values)
    assert floor["high"] >= max(values)
    # One control gives ratios, but shows no spread.
    assert "retrains" not in run("compare", old, new, "--control", controls[0]).out


def test_dropped_rows_are_counted_aloud(run: Run, save: Saver) -> None:
    save("old.csv", {"id": [1, 2, 3, 4], "target": [0] * 4, "label": [0, 0, 0, 1]})
    save("new.csv", {"id": [2, 3, 4, 5, 6], "target": [0] * 5, "label": [0, 1, 0, 0, 0]})
    refused = run("compare", "old.csv", "new.csv")
    assert refused.code == 2
    assert "old.csv has 1 id that new.csv lacks: '1', and new.csv has 2 ids that" in refused.err
    arguments = ("compare", "old.csv", "new.csv", "--on-missing", "drop")
    ran = run(*arguments, "--json", "out.json", "--markdown", "out.md")
    assert ran.code == 0
    assert "1 row only in old and 2 rows only in new" in " ".join(ran.out.split())
    rows = json.loads(Path("out.json").read_text(encoding="utf-8"))["rows"]
    counts = {"matched": 3, "only_old": 1, "only_new": 2}
    assert rows == {**counts, "only_old_ids": ["1"], "only_new_ids": ["5", "6"]}
    named = "were left out; only in old: '1'; only in new: '5', '6'"
    assert named in " ".join(ran.out.split())
    markdown = Path("out.md").read_text(encoding="utf-8")
    before_the_fold = markdown.split("<details>")[0]
    assert f"1 row only in old and 2 rows only in new {named}" in before_the_fold
    save_gate = write_policy(Path(), '[[rule]]\nmetric = "churn"\nmax = 0.9\n')
    ran = run("gate", *arguments[1:], "--policy", save_gate)
    assert "1 row only in old and 2 rows only in new" in " ".join(ran.out.split())


def test_clusters_are_told(run: Run, save: Saver) -> None:
    old, new, *_ = save_scored(save)
    ran = run("compare", old, new, "--cluster", "user")
    assert "60 clusters of user" in " ".join(ran.out.split())


def test_columns_may_have_other_names(run: Run, save: Saver) -> None:
    rows = {"key": [1, 2, 3], "truth": ["a", "b", "a"]}
    save("old.csv", {**rows, "guess": ["a", "b", "b"]})
    save("new.csv", {**rows, "guess": ["a", "a", "a"]})
    names = ("--id", "key", "--target", "truth", "--label", "guess")
    ran = run("compare", "old.csv", "new.csv", *names, "--json", "-")
    counts = json.loads(ran.out)["counts"]
    assert (counts["both_right"], counts["negative_flip"], counts["positive_flip"]) == (1, 1, 1)


def test_without_targets_only_churn_is_told(run: Run, save: Saver) -> None:
    save("old.csv", {"id": [1, 2, 3, 4], "label": list("abcd")})
    save("new.csv", {"id": [1, 2, 3, 4], "label": list("abcc")})
    ran = run("compare", "old.csv", "new.csv")
    assert ran.code == 0
    assert "25.00 % get another label" in " ".join(ran.out.split())
    assert "negative_flip_rate" not in ran.out


# -- outputs -------------------------------------------------------------------------------------


def test_standard_output_carries_nothing_but_the_document(
    run: Run, save: Saver, tmp_path: Path
) -> None:
    files = save_update(save, THOUSAND)
    document = json.loads(run("compare", *files, "--json", "-").out)
    assert document["counts"]["negative_flip"] == 20
    markdown = run("compare", *files, "--markdown", "-").out
    assert markdown.startswith("### `old.csv` → `new.csv`\n")
    assert markdown.endswith("</details>\n")
    rows = list(csv.DictReader(io.StringIO(run("compare", *files, "--flips", "-").out)))
    assert [row["kind"] for row in rows] == (
        ["negative"] * 20 + ["positive"] * 30 + ["wrong_to_wrong"] * 50
    )
    policy = write_policy(tmp_path, '[[rule]]\nmetric = "churn"\nmax = 0.5\n')
    verdict = run("gate", *files, "--policy", policy, "--json", "-")
    assert json.loads(verdict.out)["verdict"] == "pass"
    assert verdict.code == 0


@pytest.mark.parametrize(
    "pair", [("--json", "--markdown"), ("--json", "--flips"), ("--markdown", "--flips")]
)
def test_two_documents_do_not_fit_on_standard_output(
    pair: tuple[str, str], run: Run, save: Saver
) -> None:
    first, second = pair
    ran = run("compare", *save_update(save, THOUSAND), first, "-", second, "-")
    assert ran.code == 2
    assert ran.out == ""
    assert "Only one output can be -" in ran.err


def test_every_output_at_once(run: Run, save: Saver) -> None:
    files = save_update(save, THOUSAND)
    outputs = ("--json", "a.json", "--markdown", "a.md", "--flips", "a.csv")
    ran = run("compare", *files, *outputs)
    assert ran.code == 0
    # Each is what standard output would have carried.
    for flag, name in zip(outputs[::2], outputs[1::2], strict=True):
        assert Path(name).read_text(encoding="utf-8") == run("compare", *files, flag, "-").out
    assert sorted(os.listdir()) == ["a.csv", "a.json", "a.md", "new.csv", "old.csv"]


@pytest.mark.parametrize(
    "name", ["f.csv", "f.tsv", "f.csv.gz", "f.csv.zst", "f.jsonl", "f.parquet", "f.arrow"]
)
def test_flips_in_every_format(name: str, run: Run, save: Saver) -> None:
    run("compare", *save_update(save, THOUSAND), "--flips", name)
    if name.endswith(".jsonl"):
        found = pl.read_ndjson(name)
    elif name.endswith(".parquet"):
        found = pl.read_parquet(name)
    elif name.endswith(".arrow"):
        found = pl.read_ipc(name)
    else:
        found = pl.read_csv(name, separator="\t" if "tsv" in name else ",")
    assert found.columns[:5] == ["id", "kind", "target", "old", "new"]
    assert found["kind"].value_counts().sort("kind").rows() == [
        ("negative", 20),
        ("positive", 30),
        ("wrong_to_wrong", 50),
    ]


@pytest.mark.parametrize(
    ("flag", "name", "words"),
    [
        ("--json", "nowhere/out.json", "nowhere is no folder"),
        ("--markdown", "old.csv/out.md", "old.csv is no folder"),
        ("--flips", "nowhere/out.csv", "nowhere is no folder"),
        ("--json", ".", "is a folder"),
        ("--flips", "out.npz", "cannot hold the flips"),
        ("--flips", "out.jsonl.gz", "cannot hold the flips"),
        ("--flips", "out", "cannot hold the flips"),
        ("--json", "x" * 300, "File name too long"),
    ],
)
def test_an_output_that_cannot_be_written(
    flag: str, name: str, words: str, run: Run, save: Saver
) -> None:
    before = sorted(os.listdir())
    ran = run("compare", *save_update(save, THOUSAND), flag, name)
    assert ran.code == 2
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert sorted(os.listdir()) == sorted([*before, "old.csv", "new.csv"])


@pytest.mark.parametrize("flag", ["--json", "--markdown", "--flips"])
def test_a_write_that_fails_leaves_the_old_file(
    flag: str, run: Run, save: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = save_update(save, THOUSAND)
    Path("out.csv").write_text("precious", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    ran = run("compare", *files, flag, "out.csv")
    assert ran.code == 2
    assert "No space left on device" in ran.err
    assert Path("out.csv").read_text(encoding="utf-8") == "precious"
    assert sorted(os.listdir()) == ["new.csv", "old.csv", "out.csv"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_devices_are_written_to_and_never_replaced(run: Run, save: Saver, tmp_path: Path) -> None:
    files = save_update(save, THOUSAND)
    ran = run("compare", *files, "--json", "/dev/full")
    assert (ran.code, "No space left" in ran.err) == (2, True)
    assert Path("/dev/full").is_char_device()
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flipguard", "compare", *files],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("flipguard: Standard output cannot be written")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("--json", "-"), ("--flips", "-")])
def test_a_reader_that_leaves_is_no_error(
    arguments: tuple[str, ...], save: Saver, tmp_path: Path
) -> None:
    files = save_update(save, THOUSAND)
    policy = write_policy(tmp_path, '[[rule]]\nmetric = "churn"\nmax = 0.0\n')
    command = [sys.executable, "-m", "flipguard", "gate", *files, "--policy", policy, *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert done.stderr == b""
    # The verdict does not depend on its reader.
    assert done.returncode == 1


# -- gate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "word", "code"),
    [(0.05, "PASS", 0), (0.001, "FAIL", 1), (0.022, "INCONCLUSIVE", 3)],
)
def test_the_exit_code_is_the_verdict(
    limit: float, word: str, code: int, save: Saver, tmp_path: Path
) -> None:
    files = save_update(save, THOUSAND)
    policy = write_policy(tmp_path, f'[[rule]]\nmetric = "negative_flip_rate"\nmax = {limit}\n')
    ran = process(tmp_path, "gate", *files, "--policy", policy, "--json", "out.json")
    assert ran.code == code
    assert ran.err == ""
    assert ran.out.splitlines()[0].split()[0] == word
    verdict = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["verdict"]
    assert verdict == word.lower()


def test_gate_tells_the_verdict_first_and_then_each_rule(
    run: Run, save: Saver, tmp_path: Path
) -> None:
    groups = {
        "good": Flips(both_right=990, negative=10),
        "bad": Flips(both_right=700, negative=300),
        "tiny": Flips(negative=3),
    }
    files = save_update(save, groups)
    (tmp_path / "pins.txt").write_text("s0\ns995\n", encoding="utf-8")
    policy = write_policy(
        tmp_path,
        """
        [[rule]]
        metric = "negative_flip_rate"
        max = 0.30
        [[rule]]
        metric = "accuracy_gain"
        min = -0.16
        [[rule]]
        metric = "negative_flip_rate"
        by = "site"
        max = 0.1
        min_n = 50
        correction = "holm"
        [pinned]
        ids = "pins.txt"
        """,
    )
    ran = run("gate", *files, "--policy", policy)
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0] == "FAIL  2 rules failed: negative_flip_rate by site, pinned samples"
    assert re.search(r"^  PASS +negative_flip_rate +≤ 30\.00 % +15\.63 %$", ran.out, re.M)
    assert re.search(
        r"^  INCONCLUSIVE  accuracy_gain +≥ -16\.00 points +-15\.63 points$", ran.out, re.M
    )
    assert re.search(r" -17\.\d\d to -14\.\d\d$", ran.out, re.M)
    # Without the intervals, which stand to the right of the reason.
    reasons = re.sub(r" [-+\d.]+ to [-+\d.]+$", "", ran.out, flags=re.M)
    assert re.search(r"about [\d,]+ more samples for a 50 % chance to pass", joined(reasons))
    assert re.search(r"^  FAIL +negative_flip_rate by site ", ran.out, re.M)
    assert "1 fail, 1 pass, 1 not judged" in ran.out
    assert re.search(r"^  FAIL +bad +30\.00 %$", ran.out, re.M)
    assert re.search(r"^  – +tiny +100\.00 %$", ran.out, re.M)
    assert "only 3 of min_n = 50" in ran.out
    assert re.search(r"^  FAIL +pinned samples +no flip +1 of 2$", ran.out, re.M)
    assert "Ids of the pinned samples that flipped: s995" in ran.out
    assert "breaks 313" in ran.out
    assert lines_wider_than(ran.out, 80) == []


def test_gate_shows_of_the_comparison_what_was_asked_for(
    run: Run, save: Saver, tmp_path: Path
) -> None:
    old, new, *controls = save_scored(save)
    policy = write_policy(
        tmp_path, '[[rule]]\nmetric = "churn"\nby = "target"\nmax = 0.9\ncorrection = "holm"\n'
    )
    given = [part for control in controls for part in ("--control", control)]
    plain = run("gate", old, new, "--policy", policy)
    assert plain.code == 0
    assert "By target: " in plain.out
    assert "By site" not in plain.out
    asked = run("gate", old, new, "--policy", policy, "--by", "site", *given)
    assert "By site: 2 groups" in asked.out
    assert "Compared with 3 retrains" in asked.out


def test_a_policy_may_need_a_control(run: Run, save: Saver, tmp_path: Path) -> None:
    old, new, control, *_ = save_scored(save)
    policy = write_policy(tmp_path, '[[rule]]\nmetric = "churn_ratio"\nmax = 3.0\n')
    refused = run("gate", old, new, "--policy", policy)
    assert refused.code == 2
    assert "needs a control (--control)" in refused.err
    assert run("gate", old, new, "--policy", policy, "--control", control).code == 0


# -- errors --------------------------------------------------------------------------------------


def refused_once(ran: Ran) -> str:
    """The one sentence of a refusal."""
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("flipguard: ")
    assert ran.err.endswith(".\n")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    return ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.csv", "new.csv"), "absent.csv does not exist"),
        (("old.csv", "."), "is a folder"),
        (("old.csv", "notes.docx"), "no format known"),
        (("old.csv", "empty.csv"), "empty.csv is empty"),
        (("old.csv", "broken.parquet"), "broken.parquet cannot be read"),
        (("old.csv", "new.csv", "--by", "colour"), "colour"),
        (("old.csv", "new.csv", "--id", "key"), "no column 'key'"),
        (
            ("old.csv", "new.csv", "--confidence", "95"),
            "Expected --confidence to be",
        ),
        (("old.csv", "new.csv", "--exponent", "0"), "Expected --exponent"),
        (("old.csv", "new.csv", "--cluster", "user"), "user"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    arguments: tuple[str, ...], words: str, run: Run, save: Saver, tmp_path: Path
) -> None:
    save_update(save, THOUSAND)
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "notes.docx").write_bytes(b"x")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    assert words in refused_once(run("compare", *arguments))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[rule]", "not valid TOML"),
        ("", "no [[rule]]"),
        ('[[rule]]\nmetric = "accuracy"\nmax = 1\n', "no metric 'accuracy'"),
        ('[[rule]]\nmetric = "churn"\nby = "colour"\nmax = 0.5\n', "colour"),
        ('[[rule]]\nmetric = "logit_displacement"\nmax = 1\n', "logits of both models"),
        ('[pinned]\nids = "absent.txt"\n', "absent.txt"),
    ],
)
def test_a_policy_that_cannot_be_judged_is_one_sentence(
    text: str, words: str, run: Run, save: Saver, tmp_path: Path
) -> None:
    files = save_update(save, THOUSAND)
    policy = write_policy(tmp_path, text)
    assert words in refused_once(run("gate", *files, "--policy", policy, "--json", "out.json"))
    assert not Path("out.json").exists()


def test_a_separate_program_refuses_without_a_traceback(tmp_path: Path) -> None:
    refused_once(process(tmp_path, "compare", "a.csv", "b.csv"))
    refused_once(process(tmp_path, "gate", "a.csv", "b.csv", "--policy", "absent.toml"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare",),
        ("compare", "old.csv"),
        ("gate", "old.csv", "new.csv"),
        ("compare", "old.csv", "new.csv", "--engine", "gpu"),
        ("compare", "old.csv", "new.csv", "--on-missing", "guess"),
        ("compare", "old.csv", "new.csv", "--confidence", "high"),
        ("compare", "old.csv", "new.csv", "--colour"),
        ("matrix",),
        ("ensemble", "old.csv"),
        ("compere",),
    ],
)
def test_a_misspelt_command_is_a_matter_of_usage(arguments: tuple[str, ...], run: Run) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert "Usage" in ran.err
    assert "Traceback" not in ran.err


# -- what it looks like --------------------------------------------------------------------------

HOSTILE = {
    "ansi": "\x1b[31mred\x1b[0m",
    "bell and backspace": "a\a\b\b\bz",
    "newlines": "first\nsecond\r\nthird",
    "right to left": "safe\u202egnp.exe",
    "markup": "[red]loud[/red]",
    "closing markup": "[/]",
    "broken markup": "[/nothing] [",
    "link markup": "[link=http://example.com]x[/link]",
    "emoji code": ":smile:",
    "wide": "漢字" * 30,
    "long": "x" * 10_000,
    "long words": "very long name of a group " * 20,
    "line separator": "a\u2028b",
    "empty": "",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_stay_text_and_within_the_page(
    case: str, run: Run, save: Saver, tmp_path: Path
) -> None:
    name = HOSTILE[case]
    groups = {name: Flips(both_right=50, negative=30), "plain": Flips(both_right=60, negative=20)}
    save_update(save, groups)
    # Parquet, because CSV changes line ends.
    for side in ("old", "new"):
        frame = pl.read_csv(f"{side}.csv", infer_schema=False)
        if side == "old":
            frame = frame.with_columns(site=pl.Series([name] * 80 + ["plain"] * 80))
        frame.write_parquet(f"{side}.parquet")
    policy = write_policy(
        tmp_path, '[[rule]]\nmetric = "negative_flip_rate"\nby = "site"\nmax = 0.1\n'
    )
    files = ("old.parquet", "new.parquet")
    for ran in (run("compare", *files, "--by", "site"), run("gate", *files, "--policy", policy)):
        assert ran.code in (0, 1)
        assert ran.err == ""
        assert lines_wider_than(ran.out, 80) == []
        assert len(ran.out.splitlines()) < 60
        controls = [c for c in ran.out if ord(c) < 32 and c != "\n"]
        assert controls == []
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029]", ran.out)
        assert "plain" in ran.out
    shown = " ".join(run("compare", *files, "--by", "site").out.split())
    if case in ("markup", "closing markup", "broken markup", "emoji code"):
        assert name in shown


def test_a_hostile_column_and_file_name(run: Run, save: Saver) -> None:
    column = "[/red]\x1b[31m\ncolumn"
    save_update(save, {"a": Flips(both_right=9, negative=3)}, column=column)
    Path("old.csv").rename("[bold]o\x1bld.csv")
    ran = run("compare", "[bold]o\x1bld.csv", "new.csv", "--by", column)
    assert ran.code == 0
    assert ESCAPE not in ran.out
    assert "[bold]o" in ran.out
    assert "By [/red]" in ran.out
    write_policy(Path(), f"[[rule]]\nmetric = 'churn'\nmax = 0.1\nby = {json.dumps(column)}\n")
    ran = run("gate", "[bold]o\x1bld.csv", "new.csv", "--policy", "gate.toml")
    assert ran.code in (1, 3)
    assert ESCAPE not in ran.out
    assert "by [/red]" in ran.out


def test_a_file_name_that_is_no_text(run: Run, save: Saver) -> None:
    old, new = save_update(save, THOUSAND)
    name = os.fsdecode(b"old\xff.csv")
    try:
        Path(old).rename(name)
    except OSError:
        pytest.skip("this file system has only names that are text")
    assert "no valid text" in refused_once(run("compare", name, new))


@pytest.mark.parametrize("name", ["run[1].csv", "what?.csv", "all*.jsonl", "a[b]c.parquet"])
def test_a_file_name_is_no_pattern(name: str, run: Run, save: Saver) -> None:
    old, new = save_update(save, THOUSAND)
    frame = pl.read_csv(old, infer_schema=False)
    if name.endswith(".csv"):
        frame.write_csv(name)
    elif name.endswith(".jsonl"):
        frame.write_ndjson(name)
    else:
        frame.write_parquet(name)
    ran = run("compare", name, new, "--json", "-")
    assert ran.code == 0
    assert json.loads(ran.out)["counts"]["negative_flip"] == 20


@pytest.mark.parametrize("name", ["x" * 300 + ".csv", "y/" * 3000 + "z.csv"])
def test_a_name_longer_than_any_file_s_is_one_sentence(
    name: str, run: Run, save: Saver, tmp_path: Path
) -> None:
    old, new = save_update(save, THOUSAND)
    refused_once(run("compare", old, name))
    refused_once(run("gate", old, new, "--policy", name))
    write_policy(tmp_path, f'[pinned]\nids = "{name}"\n')
    refused_once(run("gate", old, new, "--policy", "gate.toml"))


def test_a_thousand_groups_show_the_worst_ten(run: Run, save: Saver, tmp_path: Path) -> None:
    groups = {
        f"class_{i:04d}": Flips(both_right=20, negative=25 if i == 7 else i % 2)
        for i in range(1000)
    }
    files = save_update(save, groups)
    ran = run("compare", *files, "--by", "site", "--json", "out.json")
    assert "the worst 10 of 1,000 groups" in ran.out
    assert lines_wider_than(ran.out, 80) == []
    shown = re.findall(r"^ +(class_\d+) ", ran.out, re.M)
    assert len(shown) == 10
    assert shown[0] == "class_0007"
    assert re.search(r"class_0007 .* ▼ regressed$", ran.out, re.M)
    document = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert len(document["by"]["site"]) == 1000
    policy = write_policy(
        tmp_path,
        '[[rule]]\nmetric = "negative_flip_rate"\nby = "site"\nmax = 0.1\ncorrection = "holm"\n',
    )
    ran = run("gate", *files, "--policy", policy)
    assert ran.code == 1
    assert lines_wider_than(ran.out, 80) == []
    assert re.search(r"^  FAIL +class_0007 ", ran.out, re.M)
    assert "and 990 more" in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--by", "target"),
        ("--by", "target", "--by", "site", "--cluster", "user"),
        ("--control", "c0.parquet"),
        ("--control", "c0.parquet", "--control", "c1.parquet", "--by", "site"),
    ],
)
def test_ordinary_output_fits_eighty_columns(
    arguments: tuple[str, ...], run: Run, save: Saver
) -> None:
    old, new, *_ = save_scored(save)
    ran = run("compare", old, new, "--all", *arguments)
    assert ran.code == 0
    assert lines_wider_than(ran.out, 80) == []
    assert [line for line in ran.out.splitlines() if line != line.rstrip()] == []
    # No metric's name was broken to make it fit.
    shown = set(re.findall(r"^  (\w+) ", ran.out, re.M))
    expected = {m for m in METRICS if not METRICS[m].needs & NOT_HERE}
    assert expected - {"churn_ratio", "negative_flip_ratio"} <= shown


NOT_HERE = {"control", "grades", "class", "classes"}


def test_no_escape_codes_where_colour_was_not_asked_for(save: Saver, tmp_path: Path) -> None:
    files = save_update(save, THOUSAND)
    policy = write_policy(tmp_path, '[[rule]]\nmetric = "churn"\nmax = 0.0\n')
    for arguments in (("compare", *files), ("gate", *files, "--policy", policy), ("metrics",)):
        ran = process(tmp_path, *arguments)
        assert ESCAPE not in ran.out + ran.err


def on_a_terminal(folder: Path, *arguments: str, **environment: str) -> tuple[str, int]:
    """What a terminal would get, and the exit code."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "flipguard", *arguments],
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env={
            **{k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")},
            "COLUMNS": "80",
            "TERM": "xterm-256color",
            **environment,
        },
    )
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(master)
    return b"".join(chunks).decode(), child.wait()


def test_a_terminal_gets_colour_unless_it_declines(save: Saver, tmp_path: Path) -> None:
    files = save_update(save, THOUSAND)
    policy = write_policy(tmp_path, '[[rule]]\nmetric = "churn"\nmax = 0.0\n')
    arguments = ("gate", *files, "--policy", policy)
    coloured, code = on_a_terminal(tmp_path, *arguments)
    assert code == 1
    assert re.search("\x1b\\[[0-9;]*31m", coloured)
    plain, _ = on_a_terminal(tmp_path, *arguments, NO_COLOR="1")
    assert not re.search("\x1b\\[[0-9;]*3[0-9]m", plain)
    # Colour decorates; it says nothing that the words do not.
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == re.sub("\x1b\\[[0-9;]*m", "", plain)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_without_unicode_gets_plain_signs(
    encoding: str, save: Saver, tmp_path: Path
) -> None:
    groups = {"été": Flips(both_right=50, negative=30), "b": Flips(both_right=50, positive=30)}
    files = save_update(save, groups)
    done = subprocess.run(
        [sys.executable, "-m", "flipguard", "compare", *files, "--by", "site", "--json", "o.json"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert "old.csv -> new.csv" in shown
    assert "v regressed" in shown
    document = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))
    assert set(document["by"]["site"]) == {"été", "b"}


# -- matrix and ensemble -------------------------------------------------------------------------


def test_matrix_tells_every_ordered_pair(run: Run, save: Saver) -> None:
    models = save_scored(save)[:3]
    ran = run("matrix", *models, "--json", "out.json")
    assert (ran.code, ran.err) == (0, "")
    assert lines_wider_than(ran.out, 80) == []
    document = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert document["n"] == 300
    for i, old in enumerate(models):
        for j, new in enumerate(models):
            if i == j:
                continue
            pair = json.loads(run("compare", old, new, "--json", "-").out)["metrics"]
            for metric in ("negative_flip_rate", "churn", "accuracy_gain"):
                assert document[metric][i][j] == pytest.approx(pair[metric]["value"]), metric
                shown = (
                    f"{100 * pair[metric]['value']:+.2f}"
                    if metric == "accuracy_gain"
                    else (f"{100 * pair[metric]['value']:.2f}")
                )
                assert shown in ran.out
    assert json.loads(run("matrix", *models, "--json", "-").out) == document


def test_matrix_of_many_models_fits_the_page(run: Run, save: Saver) -> None:
    models = []
    rng = np.random.default_rng(1)
    for i in range(14):
        labels = rng.integers(0, 2, 50).tolist()
        save(f"m{i}.csv", {"id": list(range(50)), "target": [0] * 50, "label": labels})
        models.append(f"m{i}.csv")
    ran = run("matrix", *models)
    assert ran.code == 0
    assert lines_wider_than(ran.out, 80) == []
    # Every number is whole: 14 rows of 13 values, three times.
    assert len(re.findall(r"[+-]?\d+\.\d\d(?!\d)", ran.out)) >= 3 * 14 * 13


def test_matrix_needs_two_models(run: Run, save: Saver) -> None:
    model, *_ = save_scored(save)
    refused_once(run("matrix", model))


def test_matrix_draws_a_picture(run: Run, save: Saver) -> None:
    pytest.importorskip("matplotlib")
    ran = run("matrix", *save_scored(save)[:3], "--plot", "matrix.svg")
    assert ran.code == 0
    assert Path("matrix.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")
    refused_once(run("matrix", *save_scored(save)[:3], "--plot", "nowhere/matrix.svg"))
    refused_once(run("matrix", *save_scored(save)[:3], "--plot", "matrix.docx"))


def test_ensemble_averages_the_logits(run: Run, save: Saver) -> None:
    models = save_scored(save)[:3]
    ran = run("ensemble", *models, "--out", "mean.parquet")
    assert (ran.code, ran.err) == (0, "")
    assert "mean.parquet" in ran.out
    tables = [pl.read_parquet(name).select(pl.col("^logit_.*$")).to_numpy() for name in models]
    # It is a prediction file like any other: compared with itself nothing moves, and with a
    # member the logits move by what the mean of three moves.
    document = json.loads(run("compare", models[0], "mean.parquet", "--json", "-").out)
    moved = np.linalg.norm(np.mean(tables, axis=0) - tables[0], axis=1).mean()
    assert document["metrics"]["logit_displacement"]["value"] == pytest.approx(moved, rel=1e-5)


def test_ensemble_refuses_what_has_no_scores(run: Run, save: Saver) -> None:
    refused_once(run("ensemble", *save_update(save, THOUSAND), "--out", "mean.csv"))
    assert not Path("mean.csv").exists()
