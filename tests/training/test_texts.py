"""Every method on texts, whose batches are several tensors by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from flipguard.errors import InputError
from flipguard.methods import METHODS
from flipguard.models import classify, encode_texts, tokenizer_for
from flipguard.training import Config, load_model
from tests.models.conftest import bert  # noqa: F401 (a fixture)
from tests.training.test_material import texts  # noqa: F401 (a fixture)
from tests.training.tiny import make_old, needs_old, tiny, trained, with_old

RECIPE = {"batch_size": 8, "learning_rate": 1e-3}


# The Fisher information is of samples of one size.
REFUSED = {
    "ewc": "vectors or images for `ewc`, but got tex",
}


def config_of(method: str, model: Path, data: str, folder: Path) -> Config:
    """An epoch of a method, with an old run if it needs one."""
    common = {"data": data, "model": f"hf:{model}", "recipe": RECIPE, "epochs": 1}
    config = tiny(method, **common)
    return with_old(config, make_old(folder / "old", **common)) if needs_old(method) else config


@pytest.mark.parametrize(
    "method", [*(name for name in METHODS if name not in REFUSED), "codistill-skl+entropy"]
)
def test_a_method_trains_and_predicts(
    method: str,
    bert: Path,  # noqa: F811
    texts: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flipguard.training.batches.WIDTHS", 1)
    config = config_of(method, bert, texts, tmp_path)
    run = trained(config, tmp_path / "run")
    told = np.load(run.folder / "predictions" / "test.npz")["logits"]
    lines = (Path(texts) / "test.jsonl").read_text().splitlines()
    sentences = [json.loads(line)["text"] for line in lines]
    batch = encode_texts(sentences, tokenizer=tokenizer_for(config.model), max_length=16)
    with torch.inference_mode():
        logits = classify(load_model(run).eval(), batch)
    np.testing.assert_allclose(told, logits.numpy(), atol=1e-5)


@pytest.mark.parametrize("method", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_written(
    method: str,
    bert: Path,  # noqa: F811
    texts: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    config = config_of(method, bert, texts, tmp_path)
    with pytest.raises(InputError, match=REFUSED[method]):
        trained(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nets_of_vectors_are_refused(texts: str, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(InputError, match=r"a model of texts for .*'mlp:hidden=16'; .*hf:FOLDER"):
        trained(tiny(data=texts), tmp_path / "run")


@pytest.mark.parametrize("role", ["old", "guides"])
def test_models_that_would_read_other_words_are_refused(
    role: str,
    bert: Path,  # noqa: F811
    texts: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    other = shutil.copytree(bert, tmp_path / "other")
    words = (bert / "vocab.txt").read_text().splitlines()
    (other / "vocab.txt").write_text("\n".join([*words[:5], *reversed(words[5:])]) + "\n")
    common = {"data": texts, "recipe": RECIPE, "epochs": 1}
    run = make_old(tmp_path / "theirs", model=f"hf:{other}", **common)
    method = "kd" if role == "old" else "elodi"
    config = tiny(method, model=f"hf:{bert}", **{role: (str(run.folder),)}, **common)
    with pytest.raises(InputError, match=r"by the tokenizer of hf:.*bert, since both .*another"):
        trained(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # The same words in another folder are the same.
    shutil.copy(bert / "vocab.txt", other / "vocab.txt")
    assert trained(config, tmp_path / "run").finished
