"""Models that others have trained, as runs: predictions, classes, weights, preprocessing, code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from flipguard.data import load_data
from flipguard.errors import InputError
from flipguard.files import sha256_of
from flipguard.runs.folder import MODEL, Run
from flipguard.training import Adopted, ImageSettings, adopt, load_model, predict
from flipguard.training.adopt import near_chance
from tests.models.conftest import bert  # noqa: F401 (a fixture)
from tests.training.adopting import (
    NAMES,
    SIDE,
    photos,
    pictures_of,
    saved,
    small,
    timm_model,
    torchvision_model,
    vit_folder,
)
from tests.training.test_material import texts  # noqa: F401 (a fixture)
from tests.training.tiny import images_file

SIZE = ImageSettings(input_size=(SIDE, SIDE))


def quietly(*given: Any, **named: Any) -> Adopted:
    return adopt(*given, device="cpu", report=lambda _: None, **named)


def table(run: Run) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(run.folder / "predictions" / "test.npz") as found:
        return dict(found)


@torch.no_grad()
def by_hand(
    model: Callable[[torch.Tensor], Any],
    transform: Callable[[Image.Image], torch.Tensor],
    folder: Path,
) -> torch.Tensor:
    images = [transform(Image.open(path).convert("RGB")) for path in pictures_of(folder)]
    output = model(torch.stack(images))
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data") / "photos"
    photos(place)
    return place


def test_timm_with_a_file(folder: Path, tmp_path: Path) -> None:
    model = timm_model()
    weights = saved(model, tmp_path / "w.safetensors")
    done = quietly(
        "timm:resnet10t",
        f"{folder}:size=16",
        tmp_path / "run",
        weights=weights,
        preprocessing=SIZE,
    )
    told = timm.get_pretrained_cfg("resnet10t").to_dict()
    found = timm.data.resolve_data_config({"input_size": (3, SIDE, SIDE)}, pretrained_cfg=told)
    expected = by_hand(model, timm.data.create_transform(**found), folder)
    logits = table(done.run)["logits"]
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-4)
    assert done.run.class_names == NAMES
    assert done.run.document["adopted"]["sha256"] == sha256_of(Path(weights))
    assert done.run.document["weights"] == sha256_of(done.run.folder / MODEL)
    state, own = load_file(str(done.run.folder / MODEL)), model.state_dict()
    assert all(torch.equal(state[name], own[name]) for name in own)
    wrong = (logits.argmax(-1) != table(done.run)["targets"]).mean()
    assert done.error_rate == pytest.approx(wrong)


def test_torchvision_with_a_file(folder: Path, tmp_path: Path) -> None:
    model = torchvision_model("resnet18")
    weights = saved(model, tmp_path / "w.safetensors")
    done = quietly(
        "torchvision:resnet18",
        f"{folder}",
        tmp_path / "run",
        weights=weights,
        preprocessing=ImageSettings(input_size=(64,), resize=(72,)),
    )
    transform = torchvision.models.ResNet18_Weights.DEFAULT.transforms(crop_size=64, resize_size=72)
    expected = by_hand(model, transform, folder)
    torch.testing.assert_close(
        torch.from_numpy(table(done.run)["logits"]), expected, rtol=1e-4, atol=1e-4
    )


def test_transformers_with_its_processor_and_its_labels(folder: Path, tmp_path: Path) -> None:
    model = vit_folder(tmp_path / "vit", labels=["Fox", "cat", "dog"])
    done = quietly(f"hf:{tmp_path / 'vit'}", str(folder), tmp_path / "run")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "vit", backend="pil")

    def transform(image: Image.Image) -> torch.Tensor:
        return processor(images=image, return_tensors="pt")["pixel_values"][0]

    expected = by_hand(model, transform, folder)[:, [1, 2, 0]]
    torch.testing.assert_close(
        torch.from_numpy(table(done.run)["logits"]), expected, rtol=1e-4, atol=1e-4
    )
    assert done.run.class_names == NAMES
    assert done.run.document["adopted"]["classes"] == "the model's own names"
    predict(done.run, split="test", out=tmp_path / "again.npz")
    same = (tmp_path / "again.npz").read_bytes()
    assert same == (done.run.folder / "predictions" / "test.npz").read_bytes()


def test_a_model_of_texts(bert: Path, texts: str, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(InputError, match=r"it has 5, and names none; list .*`classes=`"):
        quietly(f"hf:{bert}", texts, tmp_path / "run")
    names = load_data(texts).class_names
    spare = [f"spare {index}" for index in range(5 - len(names))]
    done = quietly(f"hf:{bert}", texts, tmp_path / "run", classes=[*spare, *names])
    assert done.run.class_names == names
    assert done.run.input_shape is None
    rows, all_rows = (
        load_file(str(path / "model.safetensors"))["classifier.weight"]
        for path in (done.run.folder, bert)
    )
    assert torch.equal(rows, all_rows[-len(names) :])


def test_a_folder_without_a_head(bert: Path, texts: str, tmp_path: Path) -> None:  # noqa: F811
    transformers.AutoModelForSequenceClassification.from_pretrained(bert).bert.save_pretrained(bert)
    with pytest.raises(InputError, match="it lacks 'classifier"):
        quietly(f"hf:{bert}", texts, tmp_path / "run")


def npz(path: Path) -> str:
    return images_file(path / "images.npz")


def own(tmp_path: Path, **named: Any) -> Adopted:
    weights = saved(small(classes=3, input_shape=None), tmp_path / "w.safetensors")
    given = {"weights": weights, "allow_code": True, **named}
    return quietly("python:tests.training.adopting:small", npz(tmp_path), tmp_path / "run", **given)


def test_a_network_of_somebodys_own(tmp_path: Path) -> None:
    done = own(tmp_path, preprocessing=ImageSettings(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)))
    with np.load(tmp_path / "images.npz") as arrays:
        images = torch.from_numpy(arrays["test_inputs"]).float() / 255
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)))
    expected = small(classes=3, input_shape=None)((images - mean) / std).detach()
    torch.testing.assert_close(torch.from_numpy(table(done.run)["logits"]), expected)


def test_without_a_scaling_it_is_said(tmp_path: Path) -> None:
    assert "its images are scaled to numbers from -1 to 1" in own(tmp_path).notes[0]


def test_code_needs_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"consent to run .*`allow_code=True`"):
        own(tmp_path, allow_code=False)
    assert not (tmp_path / "run").exists()
    run = own(tmp_path).run
    with pytest.raises(InputError, match="consent"):
        load_model(run)
    with pytest.raises(InputError, match="consent"):
        predict(run, split="test", out=tmp_path / "p.npz")
    assert isinstance(load_model(run, allow_code=True), nn.Module)
    predict(run, split="test", out=tmp_path / "p.npz", allow_code=True)
    monkeypatch.setenv("FLIPGUARD_ALLOW_CODE", "1")
    assert isinstance(load_model(run), nn.Module)


def test_a_function_that_ignores_the_classes(tmp_path: Path) -> None:
    data = images_file(tmp_path / "images.npz")
    spec = "python:tests.training.adopting:fixed"
    done = quietly(spec, data, tmp_path / "run", allow_code=True)
    assert done.run.class_names == ("0", "1", "2")
    with pytest.raises(InputError, match="use its argument `classes`"):
        quietly(spec, data, tmp_path / "other", allow_code=True, classes=["2", "1", "0"])


@pytest.mark.parametrize(
    ("file", "resize"),
    [("mobilenet_v2-b0353104.pth", 256), ("mobilenet_v2-7ebf99e0.pth", 232), ("mine.pth", 232)],
)
def test_the_preprocessing_of_the_weights_with_this_file_name(
    file: str, resize: int, folder: Path, tmp_path: Path
) -> None:
    """Those of 2021 are resized in another way than the first ones."""
    model = torchvision_model("mobilenet_v2")
    torch.save(model.state_dict(), tmp_path / file)
    spec, weights = "torchvision:mobilenet_v2", str(tmp_path / file)
    done = quietly(spec, str(folder), tmp_path / "run", weights=weights)
    assert done.run.document["preprocessing"]["resize"] == [resize]
    assumed = [note for note in done.notes if "assumed to be that of IMAGENET1K_V2" in note]
    assert len(assumed) == (file == "mine.pth")


# Classes


def test_the_order_of_classes_is_taken_from_a_file(tmp_path: Path) -> None:
    plain = table(own(tmp_path).run)["logits"]
    for name, text in (
        ("a.txt", "2\n0\n1\n"),
        ("b.json", '["2", "0", "1"]'),
        ("c.json", '{"0": "2", "1": "0", "2": "1"}'),
    ):
        (tmp_path / name).write_text(text)
        place = tmp_path / name.partition(".")[0]
        place.mkdir()
        found = table(own(place, classes=tmp_path / name).run)
        assert found["class_names"].tolist() == ["0", "1", "2"]
        np.testing.assert_allclose(found["logits"], plain[:, [1, 2, 0]], atol=1e-6)


def test_a_model_that_knows_more_classes(tmp_path: Path) -> None:
    weights = saved(small(classes=5, input_shape=None), tmp_path / "five.safetensors")
    with pytest.raises(InputError, match=r"it has 5, and names none; list .*`classes=`"):
        own(tmp_path, weights=weights)
    done = own(tmp_path, weights=weights, classes=["a", "2", "0", "b", "1"])
    assert done.run.class_names == ("0", "1", "2")
    assert "its outputs for other classes are left out: 'a', 'b'" in done.notes
    with np.load(tmp_path / "images.npz") as arrays:
        images = torch.from_numpy(arrays["test_inputs"]).float() / 127.5 - 1
    expected = small(classes=5, input_shape=None)(images).detach()[:, [2, 4, 1]]
    torch.testing.assert_close(torch.from_numpy(table(done.run)["logits"]), expected)


def test_a_model_that_knows_fewer_classes(tmp_path: Path) -> None:
    weights = saved(small(classes=2, input_shape=None), tmp_path / "two.safetensors")
    done = own(tmp_path, weights=weights, classes=["2", "0"])
    found = table(done.run)
    assert done.run.class_names == ("0", "2")
    assert found["logits"].shape == (13, 2)  # of 20 samples, seven have class 1
    with np.load(tmp_path / "images.npz") as arrays:
        kept = arrays["test_targets"] != 1
    # Classes are named by integers, so a target of 2 is the class that is called 2.
    assert found["targets"].tolist() == arrays_targets(tmp_path)[kept].tolist()
    assert "it does not know the class '1'; its predictions have no samples of it" in done.notes
    predict(done.run, split="test", out=tmp_path / "p.npz", allow_code=True)
    assert (tmp_path / "p.npz").read_bytes() == (
        done.run.folder / "predictions" / "test.npz"
    ).read_bytes()


def arrays_targets(folder: Path) -> np.ndarray[Any, Any]:
    with np.load(folder / "images.npz") as arrays:
        targets: np.ndarray[Any, Any] = arrays["test_targets"]
        return targets


def test_names_that_are_not_the_datas_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="but `classes=` has no '0', '1', '2'"):
        own(tmp_path, classes=["a", "b", "c"])
    with pytest.raises(InputError, match=r"'out\.weight' is \[3, 144\] in the file"):
        own(tmp_path, classes=["0", "1"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [(), ("4",), ("4", "5")])
def test_a_list_may_lack_a_class_whatever_its_length(more: tuple[str, ...], tmp_path: Path) -> None:
    names = ["2", "0", *more]
    weights = saved(small(classes=len(names), input_shape=None), tmp_path / "n.safetensors")
    done = own(tmp_path, weights=weights, classes=names)
    assert done.run.class_names == ("0", "2")
    left_out = [note for note in done.notes if note.startswith("its outputs for other classes")]
    assert [all(repr(name) in note for name in more) for note in left_out] == [True] * bool(more)


def test_own_names_of_which_one_is_spelled_in_another_way(folder: Path, tmp_path: Path) -> None:
    vit_folder(tmp_path / "vit", labels=["cat", "hound", "fox"])
    with pytest.raises(InputError, match="but it has no 'dog'; list its classes in order"):
        quietly(f"hf:{tmp_path / 'vit'}", str(folder), tmp_path / "run")


def test_own_names_in_another_language_are_said(folder: Path, tmp_path: Path) -> None:
    vit_folder(tmp_path / "vit", labels=["Katze", "Hund", "Fuchs"])
    done = quietly(f"hf:{tmp_path / 'vit'}", str(folder), tmp_path / "run")
    assert any("the data's order is assumed" in note for note in done.notes)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "cat\ncat\n", "'cat' more than once"),
        ("a.txt", "", "but got none"),
        ("a.json", "{", "it cannot be read"),
        ("a.json", '{"1": "cat"}', "it cannot be read"),
        ("a.json", '[["cat"]]', "it cannot be read"),
    ],
)
def test_a_bad_list_of_classes(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        own(tmp_path, classes=tmp_path / name)


# Files of weights


def wrapped(state: dict[str, Any], how: str) -> dict[str, Any]:
    if how == "plain":
        return state
    if how == "table":
        return {"state_dict": state, "epoch": 3}
    if how == "deep":
        return {"model": {"state_dict": {f"module.{n}": t for n, t in state.items()}}}
    return {f"{how}{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "how", ["plain", "table", "deep", "module.", "_orig_mod.module.", "model."]
)
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_wrappers_of_state_dicts(tmp_path: Path, how: str, suffix: str) -> None:
    model = small(classes=3, input_shape=None)
    path = tmp_path / f"w{suffix}"
    torch.save(wrapped(dict(model.state_dict()), how), path)
    done = own(tmp_path, weights=str(path))
    state = load_file(str(done.run.folder / MODEL))
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert any("prefix" in note or "table" in note for note in done.notes) == (how != "plain")


def test_half_precision_is_widened(tmp_path: Path) -> None:
    weights = saved(small(classes=3, input_shape=None).half(), tmp_path / "half.safetensors")
    state = load_file(str(own(tmp_path, weights=weights).run.folder / MODEL))
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


def test_the_first_differences_are_named(tmp_path: Path) -> None:
    state = dict(small(classes=3, input_shape=None).state_dict())
    state["extra"] = torch.zeros(2)
    del state["body.0.bias"]
    state["body.0.weight"] = torch.zeros(4, 1, 3, 3)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(InputError) as refused:
        own(tmp_path, weights=str(tmp_path / "w.pt"))
    assert (
        "'body.0.weight' is [4, 1, 3, 3] in the file and [4, 3, 3, 3] in the model, "
        "'body.0.bias' [4] is in the model alone, 'extra' [2] is in the file alone"
    ) in str(refused.value)


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("code ran",))


def test_a_pickle_with_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(InputError, match="which could run code"):
        own(tmp_path, weights=str(tmp_path / "evil.pt"))
    torch.save(small(classes=3, input_shape=None), tmp_path / "whole.pt")
    with pytest.raises(InputError, match="which could run code"):
        own(tmp_path, weights=str(tmp_path / "whole.pt"))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "contents", "said"),
    [
        ("absent.pt", None, "there is no such file"),
        ("text.pt", b"hello", "it cannot be read"),
        ("text.safetensors", b"hello", "it cannot be read"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, contents: bytes | None, said: str) -> None:
    if contents is not None:
        (tmp_path / name).write_bytes(contents)
    with pytest.raises(InputError, match=said):
        own(tmp_path, weights=str(tmp_path / name))
    torch.save({"epoch": 3, "config": "x"}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="but got a table of 'epoch'"):
        own(tmp_path, weights=str(tmp_path / "other.pt"))


def test_an_own_network_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="flipguard publishes none"):
        quietly("resnet20", npz(tmp_path), tmp_path / "run")


# What it looks like afterwards


def test_near_chance() -> None:
    assert near_chance(0.5, classes=2, samples=1000) is not None
    assert near_chance(0.4, classes=2, samples=1000) is None
    assert "images" not in str(near_chance(0.5, classes=2, samples=1000, images=False))
    assert near_chance(0.85, classes=10, samples=10_000) is not None
    assert near_chance(0.75, classes=10, samples=10_000) is None
    assert near_chance(0.999, classes=1000, samples=50_000) is not None


def test_a_folder_with_a_run_is_left_alone(tmp_path: Path) -> None:
    before = own(tmp_path).run
    with pytest.raises(InputError, match="there is a run in it"):
        own(tmp_path)
    assert Run.read(before.folder).document == before.document


def test_run_json_says_all(tmp_path: Path) -> None:
    done = own(tmp_path, preprocessing=ImageSettings(mean=(0.1, 0.2, 0.3)))
    document = json.loads((done.run.folder / "run.json").read_text())
    assert document["preprocessing"]["mean"] == [0.1, 0.2, 0.3]
    assert document["adopted"]["weights"] == "the weights in w.safetensors"
    assert document["config"]["model"] == "python:tests.training.adopting:small"
    other = tmp_path / "second"
    other.mkdir()
    assert own(other).run.document["key"] != document["key"]
