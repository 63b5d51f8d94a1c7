"""Runs on a GPU: they end, resume, repeat and use what they are told to use."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from flipguard.runs.folder import MODEL, Run
from flipguard.training import Config, Machine, Recipe, Seeds, train
from tests.training.tiny import history_of, images_file, trained

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def small(tmp_path: Path, **machine: object) -> Config:
    return Config(
        data=images_file(tmp_path / "images.npz"),
        model="resnet20:width=8",
        recipe=Recipe(epochs=3, batch_size=8, optimizer="sgd", augment="crop-flip:padding=2"),
        seeds=Seeds(seed=1),
        machine=Machine(**{"device": "cuda", "save_seconds": 0.0, **machine}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "machine",
    [
        {},
        {"precision": "bf16-mixed"},
        {"precision": "16-mixed"},
        {"checkpointing": True},
        {"compile": "parts"},
        {"compile": "whole"},
        {"precision": "bf16-mixed", "compile": "parts", "cuda_graphs": "off"},
    ],
)
def test_a_run_ends(tmp_path: Path, machine: dict[str, object]) -> None:
    run = trained(small(tmp_path, **machine), tmp_path / "run")
    assert run.finished
    assert len(history_of(run.folder)) == 3


def test_a_deterministic_run_repeats_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    config = small(tmp_path, deterministic=True)
    whole = trained(config, tmp_path / "whole").folder / MODEL
    again = trained(config, tmp_path / "again").folder / MODEL
    assert whole.read_bytes() == again.read_bytes()
    hurried = dataclasses.replace(config, machine=dataclasses.replace(config.machine, minutes=1e-9))
    part = trained(hurried, tmp_path / "part")
    assert not part.finished
    assert trained(config, tmp_path / "part", resume=True).finished
    assert (tmp_path / "part" / MODEL).read_bytes() == whole.read_bytes()


def test_a_run_goes_from_the_gpu_to_the_host(tmp_path: Path) -> None:
    hurried = small(tmp_path, minutes=1e-9)
    assert not trained(hurried, tmp_path / "run").finished
    there = dataclasses.replace(hurried, machine=Machine(device="cpu"))
    assert trained(there, tmp_path / "run", resume=True).finished


@pytest.mark.parametrize("method", ["fd-lm", "elodi", "codistill-skl", "ensemble"])
def test_methods_run_beside_their_references(tmp_path: Path, method: str) -> None:
    config = small(tmp_path, precision="bf16-mixed")
    old = trained(config, tmp_path / "old").folder
    options = {"members": 2} if method in ("elodi", "ensemble") else {}
    new = dataclasses.replace(
        config, method=method, options=options, old=(str(old),), seeds=Seeds(seed=2)
    )
    run = Run.read(trained(new, tmp_path / "new").folder)
    assert run.finished
    against = history_of(run.folder)[-1]["test"]["old"][str(old)]
    assert 0 <= against["negative_flip_rate"] <= 1


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("none", {}),
        ("fd-lm", {}),
        ("bct", {}),
        ("elodi", {"members": 2}),
        ("elodi", {"members": 2, "views": 2}),
        ("codistill-skl", {"beta": 0.5}),
        ("codistill-ce", {"every": 2}),
        ("muscle", {}),
        ("l2-sp", {}),
        ("ewc", {}),
        ("mixout", {"share": 0.0}),
        ("ract", {}),
        ("label-mix", {}),
        ("bu-cr", {}),
    ],
)
@pytest.mark.parametrize(("optimizer", "clip"), [("sgd", None), ("adamw", 1.0)])
def test_replayed_steps_are_steps(
    tmp_path: Path,
    method: str,
    options: dict[str, object],
    optimizer: str,
    clip: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is learned is the same, whether steps are started one by one or replayed."""
    replayed = {"auto": 0, "off": 0}
    plainly = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        replayed[graphs] += 1
        plainly(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    config = small(tmp_path, cuda_graphs="off")
    graphs = "off"
    old = trained(config, tmp_path / "old").folder
    found = []
    for graphs in ("auto", "off"):
        recipe = dataclasses.replace(
            config.recipe, optimizer=optimizer, learning_rate=1e-3, clip=clip
        )
        machine = dataclasses.replace(config.machine, cuda_graphs=graphs, deterministic=True)
        new = dataclasses.replace(
            config,
            method=method,
            options=options,
            old=(str(old),),
            recipe=recipe,
            machine=machine,
        )
        said: list[str] = []
        folder = tmp_path / graphs / "run"
        train(new, folder, report=said.append)
        assert not [line for line in said if "not replayed" in line]
        found.append(history_of(folder))
    assert (replayed["auto"] > 0) == (method != "codistill-ce")  # which decides step by step
    assert replayed["off"] == 0
    for row, other in zip(*found, strict=True):
        assert row["losses"] == pytest.approx(other["losses"], rel=1e-3, abs=1e-4)


def test_dropout_of_replayed_steps_is_drawn_anew(tmp_path: Path) -> None:
    config = dataclasses.replace(small(tmp_path), model="mlp:hidden=64,dropout=0.5")
    frozen = dataclasses.replace(config.recipe, learning_rate=1e-12, augment="none")
    config = dataclasses.replace(config, recipe=dataclasses.replace(frozen, epochs=6))
    losses = [row["losses"]["task"] for row in history_of(trained(config, tmp_path / "run").folder)]
    assert len(set(losses)) == len(losses)
