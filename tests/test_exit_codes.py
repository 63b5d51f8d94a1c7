"""Exit codes: 0, 1 and 3 are verdicts, and nothing else ends in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import flipguard.cli
from flipguard import METRICS, InputError, Predictions, compare
from flipguard.cli.output import Finished, Output, write_outputs, write_text
from tests.conftest import Saver
from tests.test_cli import THOUSAND, Run, refused_once, run, save_update, write_policy

__all__ = ["run"]  # a fixture

FLIPGUARD = f'"{sys.executable}" -m flipguard'
FULL = Path("/dev/full")
NEEDS_FULL = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
NEEDS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs limits as Linux has them")
BREAKS, HOLDS = (
    f'[[rule]]\nmetric = "negative_flip_rate"\nmax = {limit}\n' for limit in (0.001, 0.5)
)


def shell(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_near_command_is_asked_for_with_one_question_mark(run: Run) -> None:
    told = " ".join(refused_once(run("cmp")).split())
    assert "Did you mean 'compare'? Usage: flipguard" in told


@NEEDS_LINUX
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["", "report", "gate"])
def test_help_into_a_closed_pipe_is_no_error(command: str, unbuffered: str) -> None:
    arguments = [sys.executable, "-m", "flipguard", *command.split(), "--help"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    for _ in range(3):
        reader, writer = os.pipe()
        os.close(reader)
        ran = subprocess.run(
            arguments, stdout=writer, stderr=subprocess.PIPE, env=environment, check=False
        )
        os.close(writer)
        assert (ran.returncode, ran.stderr) == (0, b"")


class Panic(BaseException):
    """As Polars raises it: no `Exception`."""


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (Panic("index out of bounds"), 2, "this is a bug (Panic: index out of bounds)"),
        (MemoryError(), 2, "not enough memory"),
        (RecursionError("too deep"), 2, "this is a bug (RecursionError"),
        (SystemExit(1), 2, "this is a bug (SystemExit"),
        (SystemExit(0), 2, "this is a bug (SystemExit"),
        (GeneratorExit(), 2, "this is a bug"),
        (PermissionError(13, "Permission denied", "a\x1bb"), 2, "cannot be used (Permission"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
@pytest.mark.parametrize("traceback", [False, True])
def test_whatever_is_raised_is_no_verdict(
    raised: BaseException,
    code: int,
    words: str,
    traceback: bool,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: list[str]) -> None:
        raise raised

    monkeypatch.setattr(flipguard.cli, "_refuse_empty", fails)
    if traceback:
        monkeypatch.setenv("FLIPGUARD_TRACEBACK", "1")
    ran = run("gate")
    assert (ran.code, ran.out) == (code, "")
    assert "\x1b" not in ran.err or traceback
    assert ("Traceback" if traceback else words) in ran.err


def test_the_help_says_nothing_of_a_verdict(run: Run) -> None:
    assert run().code == 2
    assert run("--help").code == 0
    assert run("--version").code == 0


@NEEDS_FULL
def test_streams_that_are_closed_or_full(save: Saver, tmp_path: Path) -> None:
    files = " ".join(save_update(save, THOUSAND))
    write_policy(tmp_path, BREAKS)
    gate = f"{FLIPGUARD} gate {files} --policy gate.toml"
    # Somebody closed them on purpose; the exit code tells the verdict all the same.
    assert shell(tmp_path, f"{gate} >&- 2>&- <&-").returncode == 1
    silent = shell(tmp_path, f"{gate} --json verdict.json 2>&-")
    assert (silent.returncode, silent.stdout[:4]) == (1, "FAIL")
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == "fail"
    # A document for a stream that is closed, or a disk that is full, was not delivered.
    refused = shell(tmp_path, f"{gate} --json - >&-")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "Standard output (-) is closed" in refused.stderr
    assert shell(tmp_path, f"{gate} >/dev/full 2>/dev/full").returncode == 2
    # Nothing was judged, and the sentence that says so does not fit.
    assert shell(tmp_path, f"{gate} --control no.csv 2>/dev/full").returncode == 2
    assert shell(tmp_path, f"{FLIPGUARD} gate --help >/dev/full").returncode == 2


@pytest.mark.parametrize("columns", ["0", "1", "-5", "²", "many", "9" * 5000])
def test_a_terminal_of_no_width_is_printed_to(columns: str, run: Run, save: Saver) -> None:
    files = save_update(save, THOUSAND)
    expected = run("compare", *files).out
    os.environ["COLUMNS"] = columns  # which the fixture takes back
    ran = run("compare", *files)
    assert (ran.code, ran.out) == (0, expected)


@NEEDS_LINUX
def test_charts_that_cannot_be_drawn_take_nothing_with_them(save: Saver, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    files = " ".join(save_update(save, THOUSAND))
    write_policy(tmp_path, HOLDS)
    outputs = "--html page.html --json verdict.json --markdown verdict.md --flips flips.csv"
    done = shell(
        tmp_path,
        f"ulimit -c 0; ulimit -v 24000000; {FLIPGUARD} gate {files} --policy gate.toml {outputs}",
    )
    assert done.returncode == 2
    assert done.stdout.startswith("PASS")
    assert "The charts of the page could not be drawn" in done.stderr
    assert done.stderr.count("\n") == 1
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == "pass"
    assert len((tmp_path / "flips.csv").read_text().splitlines()) == 101
    assert (tmp_path / "verdict.md").exists()
    assert not (tmp_path / "page.html").exists()


@NEEDS_LINUX
def test_too_little_memory_to_begin_with(save: Saver, tmp_path: Path) -> None:
    # Under 100 MB, a library of numpy ends the process with exit code 1.
    files = " ".join(save_update(save, THOUSAND))
    write_policy(tmp_path, HOLDS)
    done = shell(tmp_path, f"ulimit -v 100000; {FLIPGUARD} gate {files} --policy gate.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "at least 512 MB" in done.stderr


@NEEDS_FULL
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".csv.gz"])
def test_an_output_on_a_full_disk_takes_no_other_with_it(
    suffix: str, run: Run, save: Saver, tmp_path: Path
) -> None:
    files = save_update(save, THOUSAND)
    policy = write_policy(tmp_path, HOLDS)
    (tmp_path / f"full{suffix}").symlink_to(FULL)
    (tmp_path / "full.md").symlink_to(FULL)
    ran = run(
        *("gate", *files, "--policy", policy, "--flips", f"full{suffix}"),
        *("--markdown", "full.md", "--json", "verdict.json"),
    )
    assert ran.code == 2
    assert ran.out.startswith("PASS")
    assert ran.err == (
        "flipguard: full.md cannot be written (No space left on device); check free space and "
        f"permissions, or choose another path. full{suffix} cannot be written (No space left on "
        "device); check free space and permissions, or choose another path.\n"
    )
    assert json.loads(Path("verdict.json").read_text())["verdict"] == "pass"
    assert (tmp_path / "full.md").is_symlink()


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "", "new.csv"),
        ("compare", "old.csv", "new.csv", "--json", ""),
        ("compare", "old.csv", "new.csv", "--html="),
        ("gate", "old.csv", "new.csv", "--policy", ""),
        ("matrix", "old.csv", "new.csv", "--plot", ""),
        ("ensemble", "old.csv", "new.csv", "--out", ""),
        ("report", "new.csv", "--old", "", "--out", "page.html"),
        ("train", "--out", ""),
        ("train", "--out", "run", "--set", ""),
        ("predict", "", "--out", "test.npz"),
        ("demo", "--out="),
        ("study", "show", "elodi.table1", "--out", ""),
    ],
)
def test_an_empty_argument_is_refused(arguments: tuple[str, ...], run: Run, save: Saver) -> None:
    save_update(save, THOUSAND)
    before = sorted(os.listdir())
    assert "but it is empty" in refused_once(run(*arguments))
    assert sorted(os.listdir()) == before


def test_a_column_may_have_no_name(run: Run, save: Saver) -> None:
    # The index of a data frame that pandas wrote.
    save_update(save, THOUSAND)
    for name in ("old.csv", "new.csv"):
        text = Path(name).read_text(encoding="utf-8")
        Path(name).write_text(text.replace("id,", ",", 1), encoding="utf-8")
    assert run("compare", "old.csv", "new.csv", "--id", "").code == 0


def test_a_policy_without_an_end_is_refused(run: Run, save: Saver) -> None:
    zeros = Path("/dev/zero")
    if not zeros.exists():
        pytest.skip("needs a file without an end")
    files = save_update(save, THOUSAND)
    assert "more than 50 MB" in refused_once(run("gate", *files, "--policy", str(zeros)))


def test_a_rule_about_a_column_that_is_not_there(run: Run, save: Saver, tmp_path: Path) -> None:
    files = save_update(save, THOUSAND)
    policy = write_policy(tmp_path, f'{HOLDS}{HOLDS}by = "sight"\n')
    told = (
        "gate.toml: rule 2 groups negative_flip_rate by 'sight', but neither old.csv nor new.csv "
        "has that column; did you mean site? group by one of their columns: 'id', 'target', "
        "'label', 'site'."
    )
    assert told in refused_once(run("gate", *files, "--policy", policy))
    pytest.importorskip("vl_convert")
    report = ("report", files[1], "--old", files[0], "--policy", policy, "--out", "page.html")
    assert told in refused_once(run(*report))


@pytest.mark.parametrize("tags", [[["x"], ["y"]], [timedelta(1), timedelta(2)]])
def test_a_rule_about_a_column_of_no_groups(
    tags: list[object], run: Run, save: Saver, tmp_path: Path
) -> None:
    rows = {"id": [1, 2], "target": ["a", "b"], "label": ["a", "b"], "tags": tags}
    save("old.parquet", rows)
    policy = write_policy(tmp_path, f'{HOLDS}by = "tags"\n')
    told = refused_once(run("gate", "old.parquet", "old.parquet", "--policy", policy))
    assert "gate.toml: rule 1 groups negative_flip_rate by 'tags'" in told
    assert "--by" not in told


def test_an_output_that_cannot_be_made_takes_no_other_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: Finished) -> str:
        raise MemoryError

    result = compare(**dict.fromkeys(("old", "new"), Predictions.from_arrays(labels=[0, 1])))
    places = {"json": str(tmp_path / "a.json"), "markdown": str(tmp_path / "b.md")}
    outputs = [
        Output(flag="json", help="", content=breaks, write=write_text),
        Output(flag="markdown", help="", content=lambda _: "b", write=write_text),
    ]
    monkeypatch.setattr(flipguard.cli.output, "OUTPUTS", outputs)
    with pytest.raises(MemoryError):
        write_outputs(result, ["what was found"], places, samples=None, budget="1 MB")
    assert (tmp_path / "b.md").read_text() == "b"
    assert "what was found" in capsys.readouterr().out


def test_a_drawing_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vl_convert")
    from flipguard.report import drawer

    # No drawing is as quick as this: the process is ended as one that hangs would be.
    monkeypatch.setattr(drawer, "SECONDS_PER_ANSWER", 0.0)
    with pytest.raises(InputError, match="charts of the page could not be drawn"):
        drawer.drawn("vegalite_to_svg", {"mark": "point"})


@pytest.mark.parametrize("metric", METRICS)
def test_a_limit_that_every_update_keeps_is_refused(
    metric: str, run: Run, save: Saver, tmp_path: Path
) -> None:
    files = save_update(save, THOUSAND)
    least, most = METRICS[metric].range
    for text in (f"min = {least}", f"max = {most}", f"min = {least}\nmax = {most}"):
        if "inf" in text:
            continue
        policy = write_policy(tmp_path, f'[[rule]]\nmetric = "{metric}"\njudge = "point"\n{text}\n')
        assert "would pass anything" in refused_once(run("gate", *files, "--policy", policy))


def test_a_picture_that_cannot_be_is_refused_before_the_work(run: Run) -> None:
    pytest.importorskip("matplotlib")
    many = [f"{i}.csv" for i in range(201)]
    assert "at most 200 models" in refused_once(run("matrix", *many, "--plot", "matrix.png"))
    assert "suffix of a picture" in refused_once(run("matrix", "a.csv", "--plot", "matrix.docx"))
