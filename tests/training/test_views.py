"""Stored views: what they hold by definition, that they are computed once, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from flipguard.data import build_augmentation
from flipguard.errors import InputError
from flipguard.methods.elodi import ViewOptions, views_of
from flipguard.models import build_model
from flipguard.references import Ensemble
from flipguard.references.stored_logits import StoredViews, pack_logits, packed_width
from flipguard.runs.folder import MODEL
from flipguard.training import Config, Machine, Run, Seeds, load_model, train
from flipguard.training.batches import BatchSource, data_of
from flipguard.training.scoping import held_out_of
from flipguard.training.stored_views import _refuse_overflow
from flipguard.training.view_table import DONE, TABLE, TableShape, ViewStore
from tests.children import script
from tests.models.conftest import bert  # noqa: F401 (a fixture)
from tests.training.test_material import texts  # noqa: F401 (a fixture)
from tests.training.tiny import bytes_of, everything_in, history_of, tiny, trained

AUGMENT = "shift-scale-noise"
SAMPLES, CLASSES = 200, 10


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks a view, the last of which is a rest; recorded at once."""
    monkeypatch.setattr("flipguard.training.view_table.CHUNK", 64)
    monkeypatch.setattr("flipguard.training.view_table.BETWEEN", 0.0)


def with_views(views: int | None = 2, *, epochs: int = 3, **changes: Any) -> Config:
    options = {"views": views, **changes.pop("options", {})}
    recipe = {"augment": AUGMENT, **changes.pop("recipe", {})}
    return tiny("elodi", epochs=epochs, options=options, recipe=recipe, **changes)


def store_in(folder: Path) -> Path:
    """Return the only store next to the runs of a folder."""
    (found,) = (folder / "views").iterdir()
    return found


def floats_in(store: Path, views: int, width: int = CLASSES) -> np.ndarray:
    return np.fromfile(store / TABLE, np.float16).reshape(views, SAMPLES, width)


def members_in(folder: Path) -> list[torch.nn.Module]:
    return [load_model(Run.read(run)).eval() for run in (folder / "members").iterdir()]


@torch.no_grad()
def said_of(members: list[torch.nn.Module], config: Config, seed: int, view: int) -> torch.Tensor:
    """What an ensemble says of all samples, seen as a view is: by definition."""
    data = data_of(config).train
    inputs = build_augmentation(AUGMENT)(
        data.inputs(torch.arange(len(data))), ids_index=data.ids_index, epoch=view, seed=seed
    )
    return torch.stack([member(inputs) for member in members]).mean(0)


# -- what is stored ------------------------------------------------------------------------------


def test_a_table_holds_what_the_members_say_of_each_view(tmp_path: Path) -> None:
    config = with_views(2)
    run = trained(config, tmp_path / "run")
    store = store_in(tmp_path)
    assert run.document["views"] == f"../views/{store.name}"
    seed = json.loads((store / DONE).read_text())["of"]["seed"]
    assert seed != config.seeds.of("augment")
    table, members = floats_in(store, 2), members_in(tmp_path)
    assert not np.allclose(table[0], table[1])
    for view in range(2):
        expected = said_of(members, config, seed, view).numpy()
        np.testing.assert_allclose(table[view], expected, rtol=2**-10, atol=1e-6)


def test_a_student_is_drawn_to_the_view_that_it_sees(tmp_path: Path) -> None:
    """Nothing is learned at a rate of 0, so the losses of every epoch can be told beforehand."""
    config = with_views(2, epochs=4, recipe={"learning_rate": 0.0})
    run = trained(config, tmp_path / "run")
    store = store_in(tmp_path)
    seed = json.loads((store / DONE).read_text())["of"]["seed"]
    student = build_model(
        config.model, classes=CLASSES, input_shape=(40,), seed=config.seeds.of("init")
    )
    told = [row["losses"]["pull"] for row in history_of(run.folder)]
    target = data_of(config).train.targets
    for epoch, row in enumerate(history_of(run.folder)):
        logits = said_of([student], config, seed, epoch % 2)
        table = torch.from_numpy(floats_in(store, 2)[epoch % 2].astype(np.float32))
        pull = (logits - table).square().mean()
        assert row["losses"]["pull"] == pytest.approx(0.8 * pull.item(), rel=1e-5)
        task = F.cross_entropy(logits, target)
        assert row["losses"]["task"] == pytest.approx(0.2 * task.item(), rel=1e-5)
    assert told[0] == pytest.approx(told[2], rel=1e-6) != pytest.approx(told[1], rel=1e-6)


def test_temperatures_are_in_the_table(tmp_path: Path) -> None:
    config = with_views(1, options={"guide": "calibrated"})
    trained(config, tmp_path / "run")
    document = json.loads((store_in(tmp_path) / DONE).read_text())
    learned, apart = held_out_of(data_of(config), config.scope)
    device = torch.device("cpu")
    held_out = BatchSource(apart, device=device, model=config.model)
    ensemble = Ensemble(members_in(tmp_path)).calibrate(held_out.batches())
    assert max(abs(one - 1) for one in ensemble.temperatures) > 0.01
    seen = BatchSource(
        learned,
        device=device,
        model=config.model,
        augmentation=build_augmentation(AUGMENT),
        seed=document["of"]["seed"],
    ).batch(torch.arange(len(learned)), epoch=0)[0]
    assert isinstance(seen, torch.Tensor)
    table = np.fromfile(store_in(tmp_path) / TABLE, np.float16).reshape(len(learned), CLASSES)
    np.testing.assert_allclose(table, ensemble(seen).numpy(), rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("kept", ["float16", "float32"])
@pytest.mark.parametrize(("classes", "top"), [(5, 1), (5, 4), (5, None), (40_000, 3)])
def test_the_highest_logits_and_the_mean_of_the_others(
    kept: Any, classes: int, top: int | None
) -> None:
    logits = torch.randn(6, classes, generator=torch.Generator().manual_seed(0))
    logits[0] = 1.0  # of equal ones the first classes are kept
    logits[1, -1] = 9.0  # a class that 15 bits cannot name
    table = pack_logits(logits, top=top, kept=kept)
    assert table.shape == (6, packed_width(classes=classes, top=top))
    stored = StoredViews(table.numpy(), views=2, classes=classes, top=top, kept=kept)
    rows = torch.tensor([5, 0, 1, 1])
    found = stored(rows)
    assert stored.device is None
    assert found.dtype == torch.float32
    for row, one in zip(rows.tolist(), found, strict=True):
        values = logits[row].tolist()
        expected = values
        if top is not None:
            order = sorted(range(classes), key=lambda c, v=values: (-v[c], c))  # type: ignore[misc]
            rest = sum(values[c] for c in order[top:]) / (classes - top)
            expected = [rest] * classes
            for c in order[:top]:
                expected[c] = values[c]
        tolerance = 2**-10 if kept == "float16" else 1e-6
        np.testing.assert_allclose(one, expected, rtol=tolerance, atol=1e-5)
    assert torch.equal(stored.to("cpu")(rows), found)
    assert stored.device == torch.device("cpu")


def test_a_student_learns_from_the_highest_logits(tmp_path: Path) -> None:
    run = trained(with_views(2, options={"views_top": 3}), tmp_path / "run")
    document = json.loads((store_in(tmp_path) / DONE).read_text())
    assert document["shape"] == [2, SAMPLES, 7]
    whole = trained(with_views(2), tmp_path / "whole")
    first, second = (history_of(one.folder)[-1]["losses"]["pull"] for one in (run, whole))
    assert first != second


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_views_in_another_precision(precision: str, tmp_path: Path) -> None:
    config = with_views(1, options={"views_dtype": "float32"}, machine={"precision": precision})
    run = trained(config, tmp_path / "run")
    assert run.finished


# -- without augmentation ------------------------------------------------------------------------


def test_without_augmentation_one_view_is_exact(tmp_path: Path) -> None:
    recipe = {"augment": "none", "optimizer": "sgd", "learning_rate": 0.05}
    online = trained(with_views(None, recipe=recipe), tmp_path / "online")
    weights = load_file(online.folder / MODEL)
    for kept, close in (("float32", 1e-6), ("float16", 1e-3)):
        lines: list[str] = []
        config = with_views(9, options={"views_dtype": kept}, recipe=recipe)
        run = train(config, tmp_path / kept, report=lines.append)
        assert "nothing is augmented, so one view is stored" in lines
        assert any(line.startswith("storing 1 view of 200 samples (") for line in lines)
        for name, weight in load_file(run.folder / MODEL).items():
            torch.testing.assert_close(weight, weights[name], atol=close, rtol=0)


def test_texts(bert: Path, texts: str, tmp_path: Path) -> None:  # noqa: F811
    config = with_views(
        1,
        epochs=2,
        data=texts,
        model=f"hf:{bert}",
        recipe={"batch_size": 8, "learning_rate": 1e-3, "optimizer": "sgd"},
    )
    stored = load_file(trained(config, tmp_path / "stored").folder / MODEL)
    asked = dataclasses.replace(config, options={"members": 2})
    for name, weight in load_file(trained(asked, tmp_path / "asked").folder / MODEL).items():
        torch.testing.assert_close(stored[name], weight, atol=1e-5, rtol=0)


# -- computed once -------------------------------------------------------------------------------


def test_students_of_the_same_members_share_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = tuple(
        str(trained(tiny(seeds=Seeds(seed=seed)), tmp_path / f"guide{seed}").folder)
        for seed in (11, 12)
    )
    lines: list[str] = []
    first = train(with_views(2, guides=guides), tmp_path / "first", report=lines.append)
    store = store_in(tmp_path)
    assert lines[0] == f"storing 2 views of 200 samples (8 KiB) at {store}"
    held = everything_in(store)
    written = (store / TABLE).stat().st_mtime_ns

    def never(*_: object, **__: object) -> None:
        raise AssertionError("asked for a teacher that is not needed")

    monkeypatch.setattr("flipguard.training.teachers.Ensemble", never)
    lines.clear()
    other = with_views(2, guides=guides, seeds=Seeds(seed=5), options={"alpha": 0.5})
    second = train(other, tmp_path / "second", report=lines.append)
    assert lines[0] == f"found 2 views of 200 samples (8 KiB) at {store}"
    assert second.document["views"] == first.document["views"]
    assert everything_in(store) == held
    assert (store / TABLE).stat().st_mtime_ns == written
    assert bytes_of(first.folder) != bytes_of(second.folder)
    monkeypatch.undo()
    # Other members, or the same in another order, are another ensemble.
    trained(with_views(2, guides=guides[::-1]), tmp_path / "third")
    assert len(list((tmp_path / "views").iterdir())) == 2


def test_two_that_want_the_same_table_compute_it_once(tmp_path: Path) -> None:
    shape = TableShape(views=2, samples=150, width=4, number_bytes=2)
    computed: list[int] = []

    def fill() -> None:
        store = ViewStore(tmp_path / "store", shape, of={})
        with store.held(deadline=None, report=lambda _: None) as ours:
            assert ours
            store.begin()
            for chunk in store.missing():
                computed.append(chunk.number)
                time.sleep(0.01)
                store.write(chunk, np.full((chunk.stop - chunk.start, 4), chunk.number, np.int16))

    both = [threading.Thread(target=fill) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert computed == list(range(6))
    table = ViewStore(tmp_path / "store", shape, of={}).table()
    assert table[:, 0].tolist() == [n for n in range(6) for _ in range((64, 64, 22)[n % 3])]


def test_a_run_that_waits_for_another_stops_in_time(tmp_path: Path) -> None:
    config = with_views(2)
    trained(config, tmp_path / "first")
    again = dataclasses.replace(config, machine=Machine(threads=1, device="cpu", minutes=0.03))
    store = ViewStore(
        store_in(tmp_path), TableShape(views=2, samples=SAMPLES, width=10, number_bytes=2), of={}
    )
    lines: list[str] = []
    with store.held(deadline=None, report=lines.append):
        run = train(again, tmp_path / "second", report=lines.append)
    assert run.status == "stopped"
    waited = [line for line in lines if line.startswith(f"waiting for process {os.getpid()} on ")]
    assert [line.endswith(f", which writes to {store.folder}") for line in waited] == [True]
    assert trained(config, tmp_path / "second", resume=True).finished


# -- stopped, killed, damaged --------------------------------------------------------------------


def test_stopped_again_and_again_equals_uninterrupted(tmp_path: Path) -> None:
    config = with_views(2)
    whole = trained(config, tmp_path / "whole" / "run")
    hurried = dataclasses.replace(
        config, machine=Machine(threads=1, device="cpu", save_seconds=0.0, minutes=1e-9)
    )
    stops, parts = 0, set()
    while not (run := trained(hurried, tmp_path / "stopped" / "run", resume=True)).finished:
        stops += 1
        if (tmp_path / "stopped" / "views").exists():
            document = json.loads((store_in(tmp_path / "stopped") / DONE).read_text())
            parts.add(len(document["done"]))
    assert parts == set(range(1, 9))  # a chunk a start, of four for each view
    assert stops > 10
    assert bytes_of(run.folder) == bytes_of(whole.folder)
    tables = [(store_in(tmp_path / name) / TABLE).read_bytes() for name in ("whole", "stopped")]
    assert tables[0] == tables[1]


def test_killed_while_it_stores(tmp_path: Path) -> None:
    said = script("tests.training.killing_views", tmp_path)
    expected = [f"{call} {when}: equal" for call in ("write", "record") for when in MOMENTS]
    assert said.splitlines() == expected


MOMENTS = ("before", "after")


def test_a_damaged_chunk_is_computed_again(tmp_path: Path) -> None:
    trained(with_views(2), tmp_path / "first")
    store = store_in(tmp_path)
    held = everything_in(store)
    table = bytearray(held[TABLE])
    table[(SAMPLES + 70) * CLASSES * 2] ^= 1  # of the second chunk of view 1
    (store / TABLE).write_bytes(table)
    lines: list[str] = []
    train(with_views(2, options={"alpha": 0.5}), tmp_path / "second", report=lines.append)
    said = f"samples 64 to 127 of view 1 are damaged at {store}; they are computed again"
    assert [line for line in lines if "are damaged" in line] == [said]
    assert everything_in(store) == held


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (TABLE, lambda held: held[:-2], "to be a table of 8,000 bytes, but got 7,998; remove"),
        (TABLE, lambda _: None, "to be a table of 8,000 bytes, but got 0; remove"),
        (DONE, lambda held: held[:-30], "to describe stored views, but it is damaged (JSONDecode"),
        (DONE, lambda _: b"[]", "to describe stored views, but it is damaged (TypeError)"),
        (
            DONE,
            lambda held: held.replace(b"  2,\n  200", b"  2,\n  199"),
            "as [2, 200, 10, 2, 64], but got [2, 199, 10, 2, 64]; remove",
        ),
    ],
)
def test_a_table_of_another_shape_is_refused(
    name: str, change: Any, said: str, tmp_path: Path
) -> None:
    trained(with_views(2), tmp_path / "first")
    path = store_in(tmp_path) / name
    changed = change(path.read_bytes())
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)
    with pytest.raises(InputError) as problem:
        trained(with_views(2, options={"alpha": 0.5}), tmp_path / "second")
    assert said in one_sentence(problem)
    assert str(store_in(tmp_path)) in str(problem.value)


# -- what is refused -----------------------------------------------------------------------------


def one_sentence(problem: pytest.ExceptionInfo[InputError]) -> str:
    said = str(problem.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert not re.search(r"\. [A-Z]", said), said
    return said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"views": 0}, "Expected `views` to be a whole number of at least 1 or none, but got 0."),
        (
            {"views": 2.5},
            "Expected `views` to be a whole number of at least 1 or none, but got 2.5.",
        ),
        (
            {"views": True},
            "Expected `views` to be a whole number of at least 1 or none, but got True.",
        ),
        (
            {"views": 2, "online": False},
            "Expected `views` with an ensemble that sees augmented inputs, but got "
            "`online=false`; leave one of them out.",
        ),
        (
            {"views_top": 3},
            "Expected `views_top` together with `views`, but got it alone; set `views`, or leave "
            "`views_top` out.",
        ),
        (
            {"views_dtype": "float32"},
            "Expected `views_dtype` together with `views`, but got it alone; set `views`, or leave "
            "`views_dtype` out.",
        ),
        (
            {"views": 2, "views_top": 10},
            "Expected `views_top` to be a whole number from 1 to 9 or none, but got 10; leave it "
            "out to store the logits of all 10 classes.",
        ),
        (
            {"views": 2, "views_top": 0},
            "Expected `views_top` to be a whole number from 1 to 9 or none, but got 0; leave it "
            "out to store the logits of all 10 classes.",
        ),
        (
            {"views": 2, "views_dtype": "float8"},
            "Expected `views_dtype` of `elodi` to be one of float16, float32, but got 'float8'.",
        ),
        (
            {"views": 4},
            "Expected `views` to be at most the 3 epochs that use them, but got 4; lower it, or "
            "leave it out.",
        ),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as problem:
        trained(with_views(None, options=options), tmp_path / "run")
    assert one_sentence(problem) == said
    assert not list(tmp_path.iterdir())


def test_more_classes_than_two_bytes_can_name() -> None:
    options = {"views": 1, "views_top": 5}
    assert views_of(options, classes=2**16) == ViewOptions(count=1, top=5, kept="float16")
    with pytest.raises(InputError) as problem:
        views_of(options, classes=2**16 + 1)
    assert one_sentence(problem) == (
        "Expected `views_top` in float16 with up to 65,536 classes, but got 65,537; set "
        "`views_dtype=float32`."
    )


def test_a_disk_without_room_is_refused_before_any_member_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(0, 0, 5000))
    with pytest.raises(InputError) as problem:
        trained(with_views(2), tmp_path / "run")
    assert one_sentence(problem) == (
        f"Expected room for 2 views of 200 samples (8 KiB) at {tmp_path / 'views'}, but got 5 KiB; "
        "make room, or store fewer `views`, or only their highest logits by `views_top`."
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kept", "value", "said"),
    [
        (
            "float16",
            1e5,
            "float16 can hold, up to 65504, but got 100000; set `views_dtype=float32`.",
        ),
        (
            "float32",
            torch.nan,
            "up to 3.40282e+38, but got nan; train members whose logits are in this range.",
        ),
        (
            "float16",
            -torch.inf,
            "up to 65504, but got -inf; train members whose logits are in this range.",
        ),
    ],
)
def test_logits_that_cannot_be_stored(kept: Any, value: float, said: str) -> None:
    with pytest.raises(InputError) as problem:
        _refuse_overflow(torch.tensor([[1.0, value]]), ViewOptions(count=1, top=None, kept=kept))
    assert said in one_sentence(problem)


@pytest.mark.slow
def test_two_processes_read_one_table(tmp_path: Path) -> None:
    guides = (str(trained(tiny(), tmp_path / "guide").folder),)
    config = with_views(2, recipe={"optimizer": "sgd"}, guides=guides)
    one = trained(config, tmp_path / "one" / "run")
    two = dataclasses.replace(config, machine=Machine(processes=2, device="cpu", threads=1))
    second = load_file(trained(two, tmp_path / "two" / "run").folder / MODEL)
    for name, weight in load_file(one.folder / MODEL).items():
        torch.testing.assert_close(second[name], weight, atol=1e-5, rtol=0)
