"""Batches: the same whether one by one or several ahead, and texts as wide as they need to be."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from flipguard.data import build_augmentation, load_data
from flipguard.models import build_model, classify, encode_texts, tokenizer_for
from flipguard.training import Config, Machine, Recipe, Seeds
from flipguard.training.batches import (
    Batch,
    BatchSource,
    EncodedTexts,
    EpochBatches,
    smallest_batch,
)
from flipguard.training.devices import seed_dropout
from tests.models.conftest import LABELS, WORDS, bert  # noqa: F401 (a fixture)
from tests.training.tiny import trained

CPU = torch.device("cpu")


@pytest.mark.parametrize(("bytes_at_once", "times"), [(1, 9), (3 * 7 * 40 * 4, 3), (2**18, 1)])
def test_batches_ahead_are_the_same_batches(
    bytes_at_once: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine of seven samples, each 40 numbers: one at a time, three, or all; to the last bit."""
    monkeypatch.setattr("flipguard.training.batches.AHEAD_ON_CPU", bytes_at_once)
    data = load_data("mnist1d:train=60,test=10").train
    material = BatchSource(
        data,
        device=CPU,
        model="mlp",
        augmentation=build_augmentation("shift-scale-noise"),
        seed=3,
    )
    pieces = list(torch.randperm(60).split(7))
    alone = [material.batch(piece, epoch=2) for piece in pieces]
    prepared = []
    batch = material.batch
    monkeypatch.setattr(
        material, "batch", lambda *given, **named: prepared.append(0) or batch(*given, **named)
    )
    ahead = list(material.epoch_batches(pieces, epoch=2))
    assert len(prepared) == times
    for (inputs, target), (alone_inputs, alone_target) in zip(ahead, alone, strict=True):
        assert isinstance(inputs, torch.Tensor)
        assert isinstance(alone_inputs, torch.Tensor)
        assert torch.equal(inputs, alone_inputs)
        assert torch.equal(target, alone_target)
    assert not torch.equal(ahead[0][0], batch(pieces[0])[0])  # type: ignore[arg-type]


def test_every_process_has_a_part_of_every_batch() -> None:
    """Else one would wait for the others for ever. Together they have each sample once."""
    data = load_data("mnist1d:train=60,test=10").train
    for size, accumulate, samples, processes in itertools.product(
        (1, 2, 5), (1, 2, 3, 4), (1, 5, 7, 23), (1, 2, 3)
    ):
        recipe = Recipe(batch_size=size, accumulate=accumulate)
        some = data.subset(torch.arange(60) < samples)
        source = BatchSource(some, device=CPU, model="mlp")
        least = smallest_batch(recipe, samples)
        whole = [list(step) for step in EpochBatches([source], [Seeds()], recipe).epoch(0)]
        assert least == min(len(batch.target) for step in whole for batch in step)
        if least < processes:
            continue
        ranks = [
            EpochBatches([source], [Seeds()], recipe, rank=rank, world_size=processes).epoch(0)
            for rank in range(processes)
        ]
        for step, parts in zip(whole, zip(*ranks, strict=True), strict=True):
            total = 0.0
            for batch, own in zip(step, zip(*parts, strict=True), strict=True):
                assert sorted(i for one in own for i in indices_of(one)) == sorted(
                    indices_of(batch)
                )
                assert all(len(one.target) for one in own)
                assert sum(one.share for one in own) == pytest.approx(batch.share)
                total += batch.share
            assert total == pytest.approx(1)


def indices_of(batch: Batch) -> list[int]:
    """The samples of a batch."""
    assert batch.indices is not None
    found: list[int] = batch.indices.tolist()
    return found


TEXTS = ["the cat sat", "the dog ran the dog ran the dog", "cats", "", "dogs ran", "the the the"]


def test_a_narrow_batch_of_texts_gives_the_same_logits(
    bert: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flipguard.training.batches.WIDTHS", 4)
    spec = f"hf:{bert}"
    tokenizer = tokenizer_for(spec)
    model = build_model(spec, classes=LABELS, input_shape=None, seed=0).eval()
    texts = EncodedTexts(TEXTS, tokenizer=tokenizer, device=CPU)
    pieces = [torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([3])]
    assert texts.widths(pieces) == [8, 12, 4]
    for piece, width in zip(pieces, texts.widths(pieces), strict=True):
        narrow = texts.batch(piece, width)
        assert narrow["input_ids"].shape == (len(piece), width)
        whole = encode_texts([TEXTS[i] for i in piece.tolist()], tokenizer=tokenizer, max_length=16)
        torch.testing.assert_close(classify(model, narrow), classify(model, whole))


NAMES = ("cat", "dog")


@pytest.fixture
def texts(tmp_path: Path) -> str:
    folder = tmp_path / "texts"
    folder.mkdir()
    for split, count in (("train", 24), ("test", 12)):
        rows = [
            # Of several lengths, so that batches have several widths.
            {"text": f"the {NAMES[i % 2]} sat" + i % 3 * " the", "label": NAMES[i % 2]}
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize("pretrained", [True, False])
def test_a_model_of_texts_starts_from_its_weights_if_told(
    bert: Path,  # noqa: F811
    texts: str,
    tmp_path: Path,
    pretrained: bool,
) -> None:
    config = Config(
        data=texts,
        model=f"hf:{bert}",
        pretrained=pretrained,
        recipe=Recipe(epochs=1, batch_size=8, learning_rate=0.0, weight_decay=0.0),
        machine=Machine(device="cpu", threads=1),
    )
    from safetensors.torch import load_file

    ended = load_file(trained(config, tmp_path / "run").folder / "model.safetensors")
    published = load_file(bert / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    assert ended[name].shape == (len(WORDS), published[name].shape[1])
    assert torch.equal(ended[name], published[name]) is pretrained


def test_dropout_is_seeded_as_by_torch() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        expected = torch.rand(4)
        seed_dropout(7, CPU)
        assert torch.equal(torch.rand(4), expected)


def test_states_are_kept_as_often_as_told(tmp_path: Path) -> None:
    """With nothing to wait for every epoch is kept; with an hour, only the last."""
    written: dict[float, list[int]] = {}
    for seconds in (0.0, 3600.0):
        folder = tmp_path / str(seconds)
        lines: list[int] = []

        def looked(_: str, folder: Path = folder, lines: list[int] = lines) -> None:
            history = folder / "history.jsonl"
            lines.append(len(history.read_text().splitlines()) if history.exists() else 0)

        from flipguard.training import train

        config = Config(
            data="mnist1d:train=100,test=50",
            model="mlp:hidden=8",
            recipe=Recipe(epochs=3, batch_size=50),
            machine=Machine(device="cpu", threads=1, save_seconds=seconds),
        )
        train(config, folder, report=looked)
        written[seconds] = lines
    assert written == {0.0: [1, 2, 3], 3600.0: [0, 0, 3]}
