"""Run folders as candidates: which is which, what they learned, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flipguard import InputError
from flipguard.report.runs import assign_roles, common_old
from flipguard.report.write import report_html
from flipguard.runs.history import read_run
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
    chosen = assign_roles(given, old=None, control=None)
    assert chosen.old == str(runs["old"])
    assert chosen.control == str(runs["control"])
    assert list(chosen.candidates) == ["control", "fd-lm", "kd"], "judged like the others"
    assert chosen.folders == tuple(given)
    # What is said wins, and a control alone is a candidate.
    assert assign_roles(given[:2], old="x", control=given[1]).control == given[1]
    alone = assign_roles(given[:1], old=None, control=None)
    assert (alone.control, list(alone.candidates)) == (None, ["control"])


def test_an_old_run_is_found_beside_runs_that_were_moved(tmp_path: Path) -> None:
    made.write_runs(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    found = common_old([read_run(tmp_path / "after" / "kd")])
    assert found == str(tmp_path / "after" / "old")
    (tmp_path / "after" / "old" / "run.json").unlink()
    with pytest.raises(InputError, match="which the runs name, but it does not exist; give"):
        common_old([read_run(tmp_path / "after" / "kd")])


def test_runs_that_disagree_are_refused(tmp_path: Path) -> None:
    a = made.write_run(tmp_path / "a", None, old=["v1"])
    b = made.write_run(tmp_path / "b", None, old=["v2"])
    with pytest.raises(InputError, match="name one old model, but they name v1, v2; name it"):
        assign_roles([str(a), str(b)], old=None, control=None)
    with pytest.raises(InputError, match="but they name none; name it with `old=`"):
        assign_roles([str(made.write_run(tmp_path / "c", None))], old=None, control=None)
    with pytest.raises(InputError, match="is given twice"):
        assign_roles([str(a), str(a)], old=str(b), control=str(b))
    with pytest.raises(InputError, match="is given twice"):
        assign_roles([str(a), f"{a}/../a"], old=str(b), control=str(b))
    with pytest.raises(
        InputError, match="nothing to be a run or a prediction file, but it does not"
    ):
        assign_roles([str(a), "nothing"], old=None, control=None)


def timed(seconds: str) -> str:
    return f'{{"epoch": 1, "seconds": {seconds}, "samples_a_second": 1}}\n'


def lost(value: str) -> str:
    return f'{{"epoch": 1, "losses": {{"task": {value}}}}}\n'


def changed(folder: Path, **values: object) -> None:
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(document | values))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "run.json").unlink(), "to be a run, but there is no run.json"),
        (lambda f: (f / "run.json").write_text("{"), "it is damaged (JSONDecodeError"),
        (lambda f: (f / "run.json").write_text("[]"), "it is damaged (TypeError"),
        (lambda f: (f / "history.jsonl").write_text("{}\n"), "it is damaged (KeyError"),
        (lambda f: (f / "history.jsonl").write_text("[1]\n"), "it is damaged (TypeError"),
        (lambda f: (f / "timing.jsonl").write_text("x\n"), "it is damaged (JSONDecodeError"),
        (lambda f: (f / "timing.jsonl").write_text(timed("NaN")), "a time that is no number"),
        (lambda f: (f / "timing.jsonl").write_text(timed("1" + "0" * 400)), "(OverflowError"),
        (lambda f: (f / "history.jsonl").write_text(lost("1" + "0" * 400)), "(OverflowError"),
        (lambda f: (f / "history.jsonl").write_text(lost('"high"')), "(ValueError"),
        (lambda f: (f / "history.jsonl").write_text('{"epoch": Infinity}\n'), "(TypeError"),
        (lambda f: (f / "history.jsonl").write_text('{"epoch": 1e308}\n'), "(TypeError"),
        (lambda f: (f / "history.jsonl").write_text(f'{{"epoch": {10**30}}}\n'), "(ValueError"),
        (lambda f: (f / "run.json").write_text('{"schema": "magic"}'), "its schema is not"),
        (lambda f: (f / "history.jsonl").write_text("[" * 100_000), "(RecursionError"),
        (lambda f: changed(f, parameters="many"), "expected a whole number, not str"),
        (lambda f: changed(f, parameters=float("nan")), "expected a whole number, not float"),
        (lambda f: changed(f, parameters={}), "expected a whole number, not dict"),
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
    with pytest.raises(InputError, match="to be a finished run, but it is running; continue"):
        read_run(folder)


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
    assert "3 candidates for <bdi>old</bdi>" in page
    assert page.count('class="verdict small') == 3
    for words in ("Candidates side by side", "Training and its cost", "Pull loss", "By <bdi>site"):
        assert words in page, words
    assert page.count('<span class="tag">control</span>') == 1
    assert "flipguard report" in page
    digest = re.findall(r'class="hash">([0-9a-f]{64})<', page)
    assert len(set(digest)) == 5, "old, three candidates and the policy"


def test_report_takes_prediction_files_too(run: Run, tmp_path: Path) -> None:
    made.written(tmp_path, 300)
    refused = run("report", "new.parquet", "--out", "report.html")
    assert refused.code == 2
    assert "name the old one with --old" in " ".join(refused.err.split())
    ran = run("report", "new.parquet", "control.parquet", "--old", "old.parquet", "--out", "r.html")
    assert ran.code == 0
    assert "2 candidates for" in Path("r.html").read_text(encoding="utf-8")
    out = run("report", "new.parquet", "--old", "old.parquet", "--out", "-").out
    assert out.startswith("<!DOCTYPE html>")
    assert out.rstrip().endswith("</html>")


def test_report_names_no_flag_that_it_lacks(run: Run, tmp_path: Path) -> None:
    Path("t.csv").write_text("number,target,answer\na,x,x\n", encoding="utf-8")
    ran = run("report", "t.csv", "--old", "t.csv", "--out", "r.html")
    assert ran.code == 2
    assert "call the column of ids 'id'" in ran.err
    assert "--id" not in ran.err


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
        (["--samples", "images"], "Expected --html with --samples"),
        (["--html", "a.html", "--samples", "nothing"], "nothing is none of these"),
        (["--html", "a.html", "--samples-budget", "lots"], "to be a size up to 1GB such as 5MB"),
        (["--html", "old.parquet"], "is one of the input files"),
        (
            ["--html", "a.html", "--samples", "t.csv", "--flips", "t.csv"],
            "is one of the input files",
        ),
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
    assert "did not fit into the budget of 0.02 MB" in page
    assert "data:image/png;base64," in page


def test_places_too_long_for_a_disk_are_one_sentence(tmp_path: Path) -> None:
    folder = made.write_run(tmp_path / "run", None, old=["x" * 5000])
    with pytest.raises(InputError, match="but it does not exist; give its path with `old=`"):
        assign_roles([str(folder)], old=None, control=None)
    changed(folder, members=["m" * 5000])
    assert read_run(folder).members_seconds is None


def test_only_the_end_of_a_line_ends_it(tmp_path: Path) -> None:
    folder = made.write_run(tmp_path / "run", None)
    line = {"epoch": 1, "losses": {"a\u2028b": 0.5}}
    (folder / "history.jsonl").write_text(json.dumps(line, ensure_ascii=False) + "\n")
    assert [point.what for point in read_run(folder).points] == ["loss a\u2028b"]


def test_many_losses_are_not_all_drawn_and_it_is_said(tmp_path: Path) -> None:
    losses = {f"part {i:03d}": 1.0 for i in range(40)}
    folder = made.write_run(tmp_path / "run", None, losses=losses)
    page = report_html(made.judged(200)[0], runs=[folder])
    assert "Only the first 12 of 40 losses are drawn." in page
    assert len(re.findall(r'<figure class="chart" id="curve-', page)) == 13  # and the error


def test_runs_of_one_name_are_told_apart(run: Run, tmp_path: Path) -> None:
    """A control that is called like the candidates is still the control, and shown as such."""
    found = made.models(300, names=("old", "first", "second", "third"))
    made.write_run(tmp_path / "v1", found["old"])
    for folder, name in (("a", "first"), ("b", "second"), ("c", "third")):
        made.write_run(tmp_path / folder / "kd", found[name], method="kd", old=["v1"])
    ran = run("report", "a/kd", "b/kd", "--control", "c/kd", "--out", "r.html")
    assert ran.code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    table = page[page.index("Every candidate, with intervals") :].split("</table>")[0]
    rows = re.findall(r'<th scope="row"><bdi>(.*?)</bdi>(.*?)</th>', table)
    assert [(name, "control" in tag) for name, tag in rows] == [
        ("a/kd", False),
        ("b/kd", False),
        ("kd", True),
    ]
    training = page[page.index("The runs and their cost") :].split("</table>")[0]
    assert re.findall(r'<th scope="row"><bdi>(.*?)</bdi>', training) == ["a/kd", "b/kd", "c/kd"]


@pytest.mark.parametrize(
    "place", ["kd/run.json", "kd/history.jsonl", "kd/predictions/test.npz", "old/run.json"]
)
def test_no_page_takes_the_place_of_what_a_run_is_made_of(
    place: str, run: Run, tmp_path: Path
) -> None:
    made.write_runs(tmp_path)
    before = (tmp_path / place).read_bytes()
    ran = run("report", "control", "kd", "--out", place)
    assert ran.code == 2
    assert "is one of the input files" in " ".join(ran.err.split())
    assert (tmp_path / place).read_bytes() == before
    for _ in range(2):
        assert run("report", "control", "kd", "--out", "kd/report.html").code == 0


def test_a_confidence_beside_a_policy_is_refused(run: Run, tmp_path: Path) -> None:
    made.write_runs(tmp_path)
    (tmp_path / "gate.toml").write_text("confidence = 0.9\n" + made.POLICY)
    arguments = ("report", "control", "kd", "--out", "a.html")
    ran = run(*arguments, "--policy", "gate.toml", "--confidence", "0.99")
    assert ran.code == 2
    assert "set the confidence in the policy" in " ".join(ran.err.split())
    assert not Path("a.html").exists()
    for more, told in (((), "95 %"), (("--confidence", "0.8"), "80 %")):
        assert run(*arguments, *more).code == 0
        assert f"Intervals are at {told} confidence" in Path("a.html").read_text(encoding="utf-8")
    assert run(*arguments, "--policy", "gate.toml").code == 0
    assert "Intervals are at 90 % confidence" in Path("a.html").read_text(encoding="utf-8")
    assert run(*arguments, "--confidence", "0").code == 2


def test_a_missing_extra_is_told_before_any_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.write_runs(tmp_path)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr("flipguard.report.runs.read_run", lambda _: pytest.fail("read first"))
    ran = run("report", "control", "kd", "--out", "a.html")
    assert ran.code == 2
    assert "needs vl-convert-python" in " ".join(ran.err.split())
