"""Run folders as candidates: which is which, what they learned, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flipguard import InputError
from flipguard.report.runs import chosen_runs, common_old, read_run, run_predictions
from tests.report import made
from tests.test_cli import Run


def test_a_run_is_read_without_what_trained_it(tmp_path: Path) -> None:
    folder = made.write_run(tmp_path / "v2", None, method="fd-lm", old=["v1"], epochs=3)
    found = read_run(folder)
    assert (found.name, found.method, found.old, found.seed) == ("v2", "fd-lm", ("v1",), 3)
    assert (found.epochs, found.seconds, found.samples_a_second) == (3, 4.5, 2000)
    points = {(p.what, p.split, p.epoch): p.value for p in found.points}
    assert points["error_rate", "test", 2] == pytest.approx(0.45)
    assert points["negative_flip_rate", "train", 1] == pytest.approx(0.4)
    assert points["loss task", "train", 1] == pytest.approx(2.0)
    code = (
        "import sys\nfrom flipguard.report.runs import read_run\n"
        f"read_run({str(folder)!r})\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_who_is_who_follows_from_the_runs(tmp_path: Path) -> None:
    runs = made.write_runs(tmp_path)
    given = [str(runs[name]) for name in ("control", "fd-lm", "kd")]
    chosen = chosen_runs(given, old=None, control=None)
    assert chosen.old == str(runs["old"])
    assert chosen.control == str(runs["control"])
    assert list(chosen.candidates) == ["fd-lm", "kd"]
    assert chosen.folders == tuple(given)
    # What is said wins, and a control alone is a candidate.
    assert chosen_runs(given[:2], old="x", control=given[1]).candidates == {"control": given[0]}
    alone = chosen_runs(given[:1], old=None, control=None)
    assert (alone.control, list(alone.candidates)) == (None, ["control"])


def test_an_old_run_is_found_beside_runs_that_were_moved(tmp_path: Path) -> None:
    made.write_runs(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    found = common_old([read_run(tmp_path / "after" / "kd")])
    assert found == str(tmp_path / "after" / "old")
    (tmp_path / "after" / "old" / "run.json").unlink()
    with pytest.raises(InputError, match="which the runs name, but it is not there; say where"):
        common_old([read_run(tmp_path / "after" / "kd")])


def test_runs_that_disagree_are_refused(tmp_path: Path) -> None:
    a = made.write_run(tmp_path / "a", None, old=["v1"])
    b = made.write_run(tmp_path / "b", None, old=["v2"])
    with pytest.raises(InputError, match="name one old model, but they name v1, v2; say which"):
        chosen_runs([str(a), str(b)], old=None, control=None)
    with pytest.raises(InputError, match="but they name none; say which with --old"):
        chosen_runs([str(made.write_run(tmp_path / "c", None))], old=None, control=None)
    with pytest.raises(InputError, match="is given twice"):
        chosen_runs([str(a), str(a)], old="x", control="y")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "run.json").unlink(), "to be a run, but there is no run.json"),
        (lambda f: (f / "run.json").write_text("{"), "it is damaged (JSONDecodeError"),
        (lambda f: (f / "run.json").write_text("[]"), "it is damaged (TypeError"),
        (lambda f: (f / "history.jsonl").write_text("{}\n"), "it is damaged (KeyError"),
        (lambda f: (f / "history.jsonl").write_text("[1]\n"), "it is damaged (TypeError"),
        (lambda f: (f / "timing.jsonl").write_text("x\n"), "it is damaged (JSONDecodeError"),
    ],
)
def test_a_damaged_run_is_one_sentence(damage, told: str, tmp_path: Path) -> None:
    folder = made.write_run(tmp_path / "run", None)
    damage(folder)
    with pytest.raises(InputError, match=re.escape(told)) as caught:
        read_run(folder)
    assert str(caught.value).count("\n") == 0


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    folder = made.write_run(tmp_path / "run", None, status="running")
    with pytest.raises(InputError, match="to be a finished run, but it is running; resume it"):
        read_run(folder)
    done = made.write_run(tmp_path / "done", None)
    with pytest.raises(InputError, match=r"flipguard predict .*done --split test"):
        run_predictions(done)


# -- the command -----------------------------------------------------------------------------------


def test_report_of_runs(run: Run, tmp_path: Path) -> None:
    runs = made.write_runs(tmp_path / "runs")
    names = [str(runs[name]) for name in ("control", "fd-lm", "kd")]
    (tmp_path / "gate.toml").write_text(made.POLICY)
    ran = run("report", *names, "--policy", "gate.toml", "--by", "site", "--out", "report.html")
    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"^fd-lm: (fail|inconclusive|pass): The update fixes", ran.out, re.M)
    assert ran.out.endswith("report.html: open it in any browser\n")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "2 candidates for <bdi>old</bdi>" in page
    assert page.count('class="verdict small') == 2
    for words in ("Candidates side by side", "Training and its cost", "Pull loss", "By <bdi>site"):
        assert words in page, words
    assert '<span class="tag">control</span>' in page
    assert "flipguard report" in page
    digest = re.findall(r'class="hash">([0-9a-f]{64})<', page)
    assert len(set(digest)) == 5, "old, control, two candidates and the policy"


def test_report_takes_prediction_files_too(run: Run, tmp_path: Path) -> None:
    made.written(tmp_path, 300)
    refused = run("report", "new.parquet", "--out", "report.html")
    assert refused.code == 2
    assert "say which is the old one with --old" in " ".join(refused.err.split())
    ran = run("report", "new.parquet", "control.parquet", "--old", "old.parquet", "--out", "r.html")
    assert ran.code == 0
    assert "2 candidates for" in Path("r.html").read_text(encoding="utf-8")
    out = run("report", "new.parquet", "--old", "old.parquet", "--out", "-").out
    assert out.startswith("<!DOCTYPE html>")
    assert out.rstrip().endswith("</html>")


# -- compare and gate ------------------------------------------------------------------------------


def test_compare_and_gate_write_the_page(run: Run, tmp_path: Path) -> None:
    made.written(tmp_path, 300)
    ran = run("compare", "old.parquet", "new.parquet", "--html", "a.html", "--markdown", "a.md")
    assert ran.code == 0
    assert "fixes" in ran.out
    page = Path("a.html").read_text(encoding="utf-8")
    assert "nothing was judged" in page
    assert "flipguard compare old.parquet new.parquet --html a.html --markdown a.md" in page
    assert Path("a.md").read_text(encoding="utf-8").endswith("\n[The full report](a.html)\n")
    # A policy's verdict is the exit code, the page's and the summary's.
    Path("sub").mkdir()
    ran = run(
        "gate", "old.parquet", "new.parquet", "--policy", "gate.toml", "--html", "b c.html",
        "--markdown", "sub/b.md", "--json", "b.json",
    )  # fmt: skip
    verdict = json.loads(Path("b.json").read_text(encoding="utf-8"))["verdict"]
    assert ran.code == {"pass": 0, "fail": 1, "inconclusive": 3}[verdict]
    assert f'data-verdict="{verdict}"' in Path("b c.html").read_text(encoding="utf-8")
    markdown = Path("sub/b.md").read_text(encoding="utf-8")
    assert verdict.capitalize() in markdown
    assert markdown.endswith("\n[The full report](../b%20c.html)\n")
    alone = run("compare", "old.parquet", "new.parquet", "--markdown", "-").out
    assert "full report" not in alone


def test_standard_output_can_be_the_page(run: Run, tmp_path: Path) -> None:
    made.written(tmp_path, 300)
    out = run("compare", "old.parquet", "new.parquet", "--html", "-").out
    assert out.startswith("<!DOCTYPE html>")
    assert out.rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--samples", "images"], "Expected --html beside --samples"),
        (["--html", "a.html", "--samples", "nothing"], "nothing is none of these"),
        (["--html", "a.html", "--samples-budget", "lots"], "to be a size up to 1GB such as 5MB"),
        (["--html", "old.parquet"], "is one of the files to read"),
        (["--html", "a.html", "--samples", "t.csv", "--flips", "t.csv"], "is one of the files"),
        (["--html", "-", "--json", "-"], "Only one output can be -"),
        (["--html", "nowhere/a.html"], "is no folder"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(
    arguments: list[str],
    told: str,
    run: Run,
    tmp_path: Path,
) -> None:
    made.written(tmp_path, 120)
    (tmp_path / "t.csv").write_text("id,text\ns00001,a\n")
    ran = run("compare", "old.parquet", "new.parquet", *arguments)
    assert ran.code == 2
    assert told in " ".join(ran.err.split())
    assert not list(tmp_path.glob("*.html"))


def test_samples_on_the_command_line(run: Run, tmp_path: Path) -> None:
    made.written(tmp_path, 300)
    made.write_images(tmp_path / "images", [f"s{i:05d}" for i in range(300)], side=16)
    ran = run("compare", "old.parquet", "new.parquet", "--html", "a.html", "--samples", "images",
              "--samples-budget", "20KB")  # fmt: skip
    assert ran.code == 0
    page = Path("a.html").read_text(encoding="utf-8")
    assert "beyond the budget of 0.02 MB" in page
    assert "data:image/png;base64," in page
