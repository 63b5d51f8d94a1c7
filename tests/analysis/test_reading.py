"""Members from files and runs, and the command that analyzes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from flipguard import Predictions
from flipguard.analysis import ANALYSES, analyze, read_members
from flipguard.analysis.members import MemberScores
from flipguard.errors import InputError
from tests.analysis.made_up import NAMES, written
from tests.commands import flipguard

BOTH = ("--old", "old*.npz", "--new", "new*.npz")


def stacked(members: MemberScores, role: str) -> np.ndarray:
    """All scores of a group, of shape (models, samples, classes)."""
    return np.concatenate([block[role] for _, block in members.blocks()], axis=1)


def test_files_of_a_pattern_are_a_group(tmp_path: Path) -> None:
    groups, targets = written(tmp_path)
    found = read_members(old=[f"{tmp_path}/old*.npz"], new=[tmp_path / "new3.npz"])
    assert [Path(name).name for name in found.names["old"]] == [f"old{i}.npz" for i in range(6)]
    assert np.array_equal(stacked(found, "old"), groups["old"])
    assert np.array_equal(stacked(found, "new"), groups["new"][3:4])
    assert found.targets.tolist() == targets.tolist()
    assert (found.class_names, found.ids[:2], found.left_out) == (NAMES[:4], (0, 1), 0)


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_samples_and_classes_are_matched_by_name(tmp_path: Path, suffix: str) -> None:
    """The second model knows one class more, and has its samples and classes in other orders."""
    groups, targets = written(tmp_path, samples=30)
    order, classes = np.random.default_rng(0).permutation(30), [2, 0, 3, 1]
    logits = groups["new"][0][order][:, classes]
    more = np.insert(logits, 1, -9.0, axis=1)
    names = [NAMES[2], "gnu", *(NAMES[i] for i in (0, 3, 1))]
    second = tmp_path / f"second.{suffix}"
    shown = np.array(NAMES)[targets[order]]
    if suffix == "npz":
        np.savez(second, ids=order, targets=shown, logits=more, class_names=names)
    else:
        columns = {"id": order, "target": shown}
        columns |= {f"logit_{name}": more[:, i] for i, name in enumerate(names)}
        pl.DataFrame(columns).write_parquet(second)
    found = read_members(old=[tmp_path / "old0.npz"], new=[second])
    assert found.class_names == NAMES[:4]
    assert np.array_equal(stacked(found, "old"), groups["old"][:1])
    assert np.array_equal(stacked(found, "new"), groups["new"][:1])
    again = stacked(found, "new")  # files are read as often as an analysis needs them
    assert np.array_equal(again, groups["new"][:1])


def test_samples_of_classes_that_not_all_know_are_left_out() -> None:
    logits = np.eye(3)
    old = Predictions.from_arrays(logits=logits[:, :2], class_names=["a", "b"], ids=[0, 1, 2])
    new = Predictions.from_arrays(
        logits=logits, class_names=["a", "b", "c"], targets=["a", "c", "b"], ids=[0, 1, 2]
    )
    found = read_members(old=[old], new=[new])
    assert (found.n, found.left_out, found.ids) == (2, 1, (0, 2))
    assert found.targets.tolist() == [0, 1]
    assert np.array_equal(stacked(found, "new")[0], logits[[0, 2]][:, :2])


def test_ids_that_only_one_file_has(tmp_path: Path) -> None:
    written(tmp_path, samples=20)
    few = dict(np.load(tmp_path / "new0.npz"))
    for name in ("ids", "targets", "logits"):
        few[name] = few[name][:15]
    np.savez(tmp_path / "few.npz", **few)
    given = {"old": [tmp_path / "old0.npz"], "new": [tmp_path / "few.npz"]}
    with pytest.raises(InputError):
        read_members(**given)
    found = read_members(**given, on_missing="drop")
    assert (found.n, found.left_out) == (15, 5)


def run(folder: Path, predictions: Path, *, method: str, members: list[str]) -> None:
    (folder / "predictions").mkdir(parents=True)
    (folder / "predictions" / "test.npz").write_bytes(predictions.read_bytes())
    document = {
        "schema": "flipguard.run/1",
        "status": "finished",
        "config": {"method": method},
        "members": members,
    }
    (folder / "run.json").write_text(json.dumps(document))


def test_an_ensemble_run_stands_for_its_members(tmp_path: Path) -> None:
    groups, _ = written(tmp_path, models=3)
    for i in range(3):
        run(tmp_path / f"members/{i}", tmp_path / f"old{i}.npz", method="none", members=[])
    names = [f"../members/{i}" for i in range(3)]
    run(tmp_path / "mean", tmp_path / "new0.npz", method="ensemble", members=names)
    run(tmp_path / "student", tmp_path / "new1.npz", method="elodi", members=names)
    mean, student = str(tmp_path / "mean"), str(tmp_path / "student")
    found = read_members(old=[mean], new=[student])
    assert np.array_equal(stacked(found, "old"), groups["old"])
    assert np.array_equal(stacked(found, "new"), groups["new"][1:2])
    found = read_members(old=[tmp_path / "new2.npz"], new=[student], members=True)
    assert np.array_equal(stacked(found, "new"), groups["old"])


def test_refusals_of_members(tmp_path: Path) -> None:
    written(tmp_path, models=2)
    old = tmp_path / "old0.npz"
    with pytest.raises(InputError, match="Expected at least 2 models to analyze, but got 1"):
        read_members(old=[old])
    with pytest.raises(InputError, match=r"Expected files that match .* for `new=`"):
        read_members(old=[old], new=[f"{tmp_path}/nothing*.npz"])
    labels = Predictions.from_arrays(labels=["ant"] * 80, targets=["ant"] * 80, name="plain")
    with pytest.raises(InputError, match="plain has labels but no class scores"):
        read_members(old=[old], new=[labels])
    even = Predictions.from_arrays(probabilities=np.full((80, 4), 0.25), ids=list(range(80)))
    with pytest.raises(InputError, match="cannot be analyzed together"):
        read_members(old=[old], new=[even])
    other = Predictions.from_arrays(
        logits=np.zeros((80, 2)), class_names=["x", "y"], ids=list(range(80))
    )
    with pytest.raises(InputError, match="Expected at least 2 classes that all models score"):
        read_members(old=[old], new=[other])
    bare = Predictions.from_arrays(logits=np.zeros((3, 2)), ids=[0, 1, 2], name="bare")
    with pytest.raises(InputError, match="have no column of targets"):
        read_members(old=[bare], new=[bare])


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ANALYSES))
def test_the_command_prints_what_the_json_says(tmp_path: Path, name: str) -> None:
    written(tmp_path, samples=60)
    ran = flipguard(
        "analyze", name, *BOTH, "--json", "found.json", "--plot", "found.svg", folder=tmp_path
    )
    assert (ran.code, ran.err) == (0, "")
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found) == ["schema", "name", "n", "data", "claims"]
    assert (found["schema"], found["name"], found["n"]) == ("flipguard.analysis/1", name, 60)
    said = " ".join(ran.out.split())
    assert found["data"]["sentence"] in said
    for claim in found["claims"]:
        assert list(claim) == ["text", "value", "low", "high", "holds"]
    words = {True: "holds", False: "does not hold", None: "unclear"}
    lines = [line for line in ran.out.splitlines() if line.startswith("  ")]
    for claim in found["claims"]:
        start = " ".join(claim["text"].split()[:2])
        assert any(start in one and words[claim["holds"]] in one for one in lines)
    assert "Written: found.json, found.svg" in ran.out
    assert (tmp_path / "found.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_of_both_themes(tmp_path: Path, theme: str) -> None:
    from PIL import Image

    written(tmp_path, samples=30, models=3)
    ran = flipguard("analyze", "rank", *BOTH, "--plot", "x.png", "--theme", theme, folder=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    with Image.open(tmp_path / "x.png") as image:
        assert 900 < image.width < 1_400
        corner = sum(image.convert("RGB").getpixel((2, 2))) / 3  # type: ignore[arg-type]
        assert (corner > 128) == (theme == "light")


def test_json_on_standard_output(tmp_path: Path) -> None:
    written(tmp_path, samples=40)
    ran = flipguard("analyze", "rank", *BOTH, "--top", "2", "--json", "-", folder=tmp_path)
    assert json.loads(ran.out)["data"]["top"] == 2


def test_python_gives_the_same_as_the_command(tmp_path: Path) -> None:
    written(tmp_path, samples=40)
    flipguard(
        *("analyze", "sizes", *BOTH, "--draws", "5", "--seed", "2", "--json", "found.json"),
        folder=tmp_path,
    )
    found = analyze(
        "sizes", old=[f"{tmp_path}/old*.npz"], new=[f"{tmp_path}/new*.npz"], draws=5, seed=2
    )
    document = json.loads((tmp_path / "found.json").read_text())
    for role in ("old", "new"):
        document["data"][role] = [str(tmp_path / name) for name in document["data"][role]]
    assert found.as_dict() == document


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("size", *BOTH), "Expected the name of an analysis, but got 'size'; did you mean sizes?"),
        (("sizes", *BOTH, "--top", "3"), "Expected no --top with sizes; it has draws or seed."),
        (("uncertainty", *BOTH, "--draws", "3"), "Expected no --draws with uncertainty;"),
        (("rank", *BOTH, "--judge", "old0.npz"), "Expected no --judge with rank; only uncertainty"),
        (("sizes", "--old", "old0.npz"), "Expected at least 2 models to analyze, but got 1;"),
        (("sizes", "--old", "no*.npz"), "Expected files that match 'no*.npz' for --old,"),
        (("law", *BOTH, "--sample", "x"), "Expected --sample to be the id of a sample"),
        (("rank", *BOTH, "--plot", "x.gif"), "x.gif does not end in the suffix of a picture"),
        (("rank", *BOTH, "--json", "old0.npz"), "would be overwritten"),
    ],
)
def test_refusals_are_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    written(tmp_path, samples=30, models=4)
    ran = flipguard("analyze", *arguments, folder=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1
