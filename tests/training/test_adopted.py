"""An adopted run is an ordinary one: an old model, a guide, a member, a start, part of a matrix."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch

from flipguard import compare, matrix, read_predictions
from flipguard.data import load_data
from flipguard.errors import InputError
from flipguard.models import classify
from flipguard.models.preprocessing import preprocessing_of
from flipguard.training import ImageSettings, Machine, Run, Scope, adopt, load_model, train
from flipguard.training.adopt import adopt_job
from flipguard.training.batches import BatchSource, data_of
from flipguard.training.checkpoint import load_old_model
from flipguard.training.evaluate import logits_on
from flipguard.training.jobs import adopt_job_for
from flipguard.worker_process import JobContext
from tests import commands
from tests.commands import Ran
from tests.training.adopting import (
    SIDE,
    photos,
    saved,
    small,
    timm_model,
    torchvision_model,
    vit_folder,
)
from tests.training.tiny import bytes_of, history_of, images_file, tiny, trained, with_old

OWN = "python:tests.training.adopting:small"
MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def code_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the adopted models is made by a function of these tests."""
    monkeypatch.setenv("FLIPGUARD_ALLOW_CODE", "1")


def adopted(spec: str, data: str, out: Path, **named: Any) -> Run:
    return adopt(spec, data, out, device="cpu", report=lambda _: None, **named).run


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> str:
    return images_file(tmp_path_factory.mktemp("arrays") / "images.npz")


@pytest.fixture
def old(arrays: str, tmp_path: Path) -> Run:
    weights = saved(small(classes=3, input_shape=None), tmp_path / "w.safetensors")
    settings = ImageSettings(mean=MEAN, std=STD)
    return adopted(OWN, arrays, tmp_path / "old", weights=weights, preprocessing=settings)


@pytest.fixture
def larger(arrays: str, tmp_path: Path) -> Run:
    """A model that reads images of another size than the data have."""
    weights = saved(timm_model(), tmp_path / "timm.safetensors")
    settings = ImageSettings(input_size=(SIDE, SIDE))
    spec = "timm:resnet10t"
    return adopted(spec, arrays, tmp_path / "larger", weights=weights, preprocessing=settings)


def logits_of(run: Run) -> Any:
    with np.load(run.folder / "predictions" / "test.npz") as table:
        return table["logits"]


def update(method: str, arrays: str, *olds: Run, **changes: Any) -> Any:
    given = {"data": arrays, "model": "conv2d:width=4", "epochs": 1, **changes}
    return with_old(tiny(method, recipe={"batch_size": 10}, **given), *olds)


def test_each_model_scales_the_same_pictures_its_own_way(old: Run, arrays: str) -> None:
    data = data_of(old.config)
    info = load_old_model(old, data, CPU, Machine(device="cpu"))
    source = BatchSource(data.train, device=CPU, model=OWN)
    inputs, _ = source.batch(torch.arange(5))
    assert isinstance(inputs, torch.Tensor)
    assert inputs.min() >= -1
    assert inputs.max() <= 1
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in (MEAN, STD))
    bare = small(classes=3, input_shape=None)
    expected = bare(((inputs + 1) / 2 - mean) / std)
    torch.testing.assert_close(info.reference(inputs), expected)


@pytest.mark.parametrize(
    "method", ["naive", "kd", "fd-kl", "fd-lm", "bct", "muscle", "label-mix", "elodi"]
)
def test_as_old(method: str, old: Run, larger: Run, arrays: str, tmp_path: Path) -> None:
    for name, run in (("a", old), ("b", larger)):
        new = trained(update(method, arrays, run), tmp_path / name)
        result = compare(
            old=read_predictions(run.folder / "predictions" / "test.npz"),
            new=read_predictions(new.folder / "predictions" / "test.npz"),
        )
        (rates,) = history_of(new.folder)[-1]["test"]["old"].values()
        for rate in ("negative_flip_rate", "positive_flip_rate", "churn"):
            assert rates[rate] == pytest.approx(result[rate].value)
        assert new.follows[f"../{run.folder.name}"] == run.document["weights"]


@pytest.mark.parametrize("options", [{}, {"views": 1}])
def test_as_guides(
    options: dict[str, Any], old: Run, larger: Run, arrays: str, tmp_path: Path
) -> None:
    guides = (str(old.folder), str(larger.folder))
    run = trained(update("elodi", arrays, guides=guides, options=options), tmp_path / "new")
    assert run.document["members"] == ["../old", "../larger"]
    assert ("views" in run.document) == bool(options)


def test_as_members_of_an_ensemble(old: Run, larger: Run, arrays: str, tmp_path: Path) -> None:
    plain = trained(update("none", arrays), tmp_path / "plain")
    runs = (old, larger, plain)
    config = update("ensemble", arrays, guides=tuple(str(run.folder) for run in runs))
    mean = trained(config, tmp_path / "mean")
    logits = [logits_of(run) for run in (*runs, mean)]
    np.testing.assert_allclose(logits[-1], np.mean(logits[:-1], axis=0), atol=1e-5)
    inputs, _ = BatchSource(load_data(arrays).test, device=CPU, model=OWN).batch(torch.arange(20))
    with torch.no_grad():
        again = classify(load_model(mean).eval(), inputs)
    np.testing.assert_allclose(again.numpy(), logits[-1], atol=1e-5)
    new = trained(update("fd-lm", arrays, mean), tmp_path / "new")
    assert new.finished


def test_as_the_start_of_fine_tuning(old: Run, arrays: str, tmp_path: Path) -> None:
    for method in ("none", "l2-sp"):
        config = update(method, arrays, old, model=OWN, fine_tune=True)
        run = trained(config, tmp_path / method)
        assert preprocessing_of(load_model(run)) == preprocessing_of(load_model(old))
        assert run.document["preprocessing"]["mean"] == list(MEAN)


def test_as_members_that_start_from_it(old: Run, arrays: str, tmp_path: Path) -> None:
    config = update("ensemble", arrays, old, model=OWN, fine_tune=True)
    run = trained(config, tmp_path / "mean")
    members = [Run.read(run.folder / name) for name in run.document["members"]]
    wanted = preprocessing_of(load_model(old))
    assert all(preprocessing_of(load_model(member)) == wanted for member in members)
    assert trained(update("fd-lm", arrays, run), tmp_path / "new").finished


@pytest.mark.parametrize("method", ["codistill-skl", "elodi", "none"])
@pytest.mark.parametrize("fuse", ["on", "off"])
def test_a_student_with_own_preprocessing(
    method: str, fuse: str, old: Run, arrays: str, tmp_path: Path
) -> None:
    settings = ImageSettings(input_size=(12, 12), mean=(0.4,) * 3, std=(0.2,) * 3)
    config = update(method, arrays, old, preprocessing=settings, machine={"fuse": fuse})
    run = trained(config, tmp_path / "new")
    logits = logits_of(run)
    model = load_model(run)
    assert preprocessing_of(model) is not None
    source = BatchSource(load_data(arrays).test, device=CPU, model=config.model)
    np.testing.assert_allclose(logits_on(model, source).numpy(), logits, atol=1e-5)
    again = trained(config, tmp_path / "again")
    assert bytes_of(again.folder) == bytes_of(run.folder)


# Image files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return photos(tmp_path_factory.mktemp("data") / "photos")


def test_files_are_decoded_for_each_model(folder: str, tmp_path: Path) -> None:
    """Rates of the last epoch are those of the prediction files, to the sample."""
    vit_folder(tmp_path / "vit")
    first = adopted(f"hf:{tmp_path / 'vit'}", folder, tmp_path / "old")
    plain = trained(update("none", folder), tmp_path / "plain")
    settings = ImageSettings(input_size=(24, 28), mean=(0.4,) * 3, std=(0.2,) * 3)
    config = update("fd-lm", folder, first, plain, preprocessing=settings)
    run = trained(config, tmp_path / "new")
    assert run.input_shape == (3, 24, 28)
    for one in (first, plain):
        result = compare(
            old=read_predictions(one.folder / "predictions" / "test.npz"),
            new=read_predictions(run.folder / "predictions" / "test.npz"),
        )
        rates = history_of(run.folder)[-1]["test"]["old"][str(one.folder)]
        assert rates["churn"] == pytest.approx(result["churn"].value)
    mean = trained(
        update("ensemble", folder, guides=(str(first.folder), str(run.folder))), tmp_path / "mean"
    )
    logits = [logits_of(one) for one in (first, run, mean)]
    np.testing.assert_allclose(logits[-1], np.mean(logits[:-1], axis=0), atol=1e-5)


# Weights to start from


def test_published_weights_keep_their_head(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights in torchvision's cache; three of ImageNet's classes, two by their folders."""
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    model = torchvision_model("squeezenet1_1", classes=1000)
    torch.save(model.state_dict(), cache / "squeezenet1_1-b8a52dc0.pth")
    data = photos(tmp_path / "named", names=["n01440764", "n01443537", "Hammerhead"], train=2)
    given = {"model": "torchvision:squeezenet1_1", "pretrained": True}
    size = ImageSettings(input_size=(64, 64))
    said: list[str] = []
    config = update("none", data, preprocessing=size, **given)
    config = tiny_steps(config)
    run = train(config, tmp_path / "run", report=said.append)
    assert any("with 3 of the 1000 classes of its head" in line for line in said)
    rows = load_model(run).state_dict()["classifier.1.weight"]
    torch.testing.assert_close(rows, model.state_dict()["classifier.1.weight"][[4, 0, 1]])
    assert run.document["preprocessing"]["mean"] == [0.485, 0.456, 0.406]
    other = trained(tiny_steps(update("none", folder, preprocessing=size, **given)), tmp_path / "b")
    assert "with a new head, because its classes are others" in other.document["start"]
    run = adopted("torchvision:squeezenet1_1", data, tmp_path / "c", preprocessing=size)
    assert run.document["adopted"]["weights"] == "torchvision's published weights IMAGENET1K_V1"
    # The same file elsewhere is known by its name.
    file = shutil.copy(cache / "squeezenet1_1-b8a52dc0.pth", tmp_path)
    again = adopted(
        "torchvision:squeezenet1_1", data, tmp_path / "d", preprocessing=size, weights=file
    )
    np.testing.assert_array_equal(logits_of(again), logits_of(run))


def test_published_weights_that_cannot_be_loaded(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (cache / "squeezenet1_1-b8a52dc0.pth").write_bytes(b"half of a download")
    with pytest.raises(InputError, match=r"; name a file of weights \(`weights=`\), or ano"):
        adopted("torchvision:squeezenet1_1", folder, tmp_path / "run")


def tiny_steps(config: Any) -> Any:
    recipe = dataclasses.replace(config.recipe, learning_rate=0.0, weight_decay=0.0)
    return dataclasses.replace(config, recipe=recipe)


def test_timms_cache_is_used(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = "0" * 40
    place = tmp_path / "models--timm--test_vit.r160_in1k"
    (place / "snapshots" / revision).mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(revision)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    model = timm_model("test_vit", classes=1000)
    saved(model, place / "snapshots" / revision / "model.safetensors")
    config = tiny_steps(update("none", folder, model="timm:test_vit", pretrained=True))
    run = trained(config, tmp_path / "run")
    assert run.document["start"].startswith("starts from timm's published weights r160_in1k")
    assert run.document["preprocessing"]["input_size"] == [160, 160]
    own, theirs = load_model(run).state_dict(), model.state_dict()
    same = [name for name in own if torch.equal(own[name], theirs[name])]
    assert sorted(set(own) - set(same)) == ["head.bias", "head.weight"]


def test_a_file_to_start_from(arrays: str, tmp_path: Path) -> None:
    model = small(classes=5, input_shape=None)
    config = tiny_steps(
        update("none", arrays, model=OWN, weights=saved(model, tmp_path / "w.safetensors"))
    )
    run = trained(config, tmp_path / "run")
    assert run.document["start"] == (
        "starts from the weights in w.safetensors, with a new head, because they name no classes"
    )
    state = load_model(run).state_dict()
    torch.testing.assert_close(state["body.0.weight"], model.state_dict()["body.0.weight"])
    (tmp_path / "w.safetensors").unlink()
    with pytest.raises(InputError, match=r"the weights .*, but there is no such file"):
        trained(config, tmp_path / "other")


def test_pictures_are_needed_for_a_mean(tmp_path: Path) -> None:
    config = tiny(preprocessing=ImageSettings(mean=(0.5,)))
    with pytest.raises(InputError, match="Expected images for a model with prep"):
        trained(config, tmp_path / "run")


# The command line


def flipguard(folder: Path, *arguments: str | Path) -> Ran:
    return commands.flipguard(*arguments, folder=folder)


def test_the_command(arrays: str, tmp_path: Path) -> None:
    weights = saved(small(classes=3, input_shape=None), tmp_path / "w.safetensors")
    command = ("adopt", "--model", OWN, "--weights", weights, "--data", arrays, "--out", "old")
    refused = flipguard(tmp_path, *command)
    assert refused.code == 2
    assert "repeat this with --allow-code" in refused.err
    done = flipguard(tmp_path, *command, "--mean", "0.1,0.2,0.3", "--std", "0.5", "--allow-code")
    assert done.code == 0, done.err
    assert "old: inputs of 3 x 8 x 8, mean 0.1, 0.2, 0.3, deviation 0.5" in done.out
    assert "old: error rate" in done.out
    update = (
        *("train", "--method", "fd-lm", "--old", "old", "--data", arrays, "--model", "conv2d"),
        *("--set", "recipe.epochs=1", "--set", "machine.device=cpu", "--out", "new"),
    )
    refused = flipguard(tmp_path, *update)
    assert refused.code == 2
    assert "--allow-code" in refused.err
    assert not (tmp_path / "new").exists()
    done = flipguard(tmp_path, *update, "--allow-code")
    assert done.code == 0, done.err
    for run, flags in (("old", ("--allow-code",)), ("new", ())):
        done = flipguard(tmp_path, "predict", run, "--out", "p.npz", *flags)
        assert done.code == 0, done.err
    page = flipguard(tmp_path, "report", "new", "--out", "page.html")
    assert page.code == 0, page.err
    done = flipguard(tmp_path, *command[:-1], "other", "--allow-code")
    assert done.code == 0, done.err
    page = flipguard(tmp_path, "report", "other", "new", "--old", "old", "--out", "page.html")
    assert page.code == 0, page.err
    assert "adopted" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (("--input-size", "big"), "a number of pixels, or height and width such as 224,192"),
        (("--mean", "a,b"), "one number, or one per channel"),
        (("--interpolation", "cubic"), "one of nearest, bilinear"),
    ],
)
def test_flags_that_make_no_sense(
    flag: tuple[str, str], said: str, arrays: str, tmp_path: Path
) -> None:
    weights = saved(small(classes=3, input_shape=None), tmp_path / "w.safetensors")
    given = ["adopt", "--model", OWN, "--weights", weights, "--data", arrays, "--allow-code"]
    done = flipguard(tmp_path, *given, "--out", "run", *flag)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--resize", "48"),
            "image files for --resize, because images in arrays are not cropped",
        ),
        (("--interpolation", "cubic"), "Expected --interpolation to be one of nearest"),
        (("--std", "0"), "Expected --mean to be numbers and --std to be numbers above 0"),
        (("--data", "mnist"), "with --data-root DIR or FLIPGUARD_DATA"),
        (("--data", "mnist", "--data-root", "there"), "`mnist` to be at there/mnist"),
    ],
)
def test_errors_name_the_flags_of_the_command(
    flags: tuple[str, ...], said: str, arrays: str, tmp_path: Path
) -> None:
    weights = saved(small(classes=3, input_shape=None), tmp_path / "w.safetensors")
    given = ["adopt", "--model", OWN, "--weights", weights, "--data", arrays, "--allow-code"]
    done = flipguard(tmp_path, *given, "--out", "run", *flags)
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_arrays_are_not_said_to_be_cropped(arrays: str, tmp_path: Path) -> None:
    """Also if the library's preprocessing crops image files."""
    weights = saved(timm_model(), tmp_path / "w.safetensors")
    said: list[str] = []
    settings = ImageSettings(input_size=(SIDE, SIDE))
    given = {"weights": weights, "preprocessing": settings, "device": "cpu"}
    adopt("timm:resnet10t", arrays, tmp_path / "run", report=said.append, **given)
    assert any("inputs of 3 x 32 x 32, mean 0.485" in line for line in said)
    assert not any("crop" in line for line in said)


# Figure 2 of the PCT paper: pairs of classifiers that others have trained

QUICK = {
    "timm:resnet10t": 32,
    "torchvision:mobilenet_v3_small": 64,
    "torchvision:squeezenet1_1": 64,
}
TEN = {
    **QUICK,
    "timm:mobilenetv3_small_050": 64,
    "timm:efficientnet_lite0": 64,
    "timm:test_vit": 32,
    "timm:regnetx_002": 64,
    "torchvision:resnet18": 64,
    "torchvision:shufflenet_v2_x0_5": 64,
    "torchvision:alexnet": 64,
}


@pytest.mark.parametrize(
    "models", [QUICK, pytest.param(TEN, marks=pytest.mark.slow)], ids=["three", "ten"]
)
def test_a_matrix_of_given_classifiers(models: dict[str, int], folder: str, tmp_path: Path) -> None:
    runs = []
    for spec, size in models.items():
        kind, _, name = spec.partition(":")
        make = timm_model if kind == "timm" else torchvision_model
        fixed = {"img_size": size} if name == "test_vit" else {}
        place = tmp_path / f"{kind}-{name}"
        settings = ImageSettings(input_size=(size, size))
        weights = saved(make(name, **fixed), tmp_path / f"{kind}-{name}.safetensors")
        adopted(spec, folder, place, weights=weights, preprocessing=settings)
        runs.append(place)
    done = flipguard(tmp_path, "matrix", *runs, "--json", "matrix.json")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "matrix.json").read_text())
    assert found["models"] == [run.name for run in runs]
    expected = matrix([read_predictions(run) for run in runs])
    assert found == json.loads(expected.to_json())
    right = []
    for run in runs:
        with np.load(run / "predictions" / "test.npz") as table:
            right.append(table["logits"].argmax(-1) == table["targets"])
    rates = [[float((a & ~b).mean()) for b in right] for a in right]
    assert np.array(found["negative_flip_rate"]).shape == (len(models),) * 2
    for row, values in zip(found["negative_flip_rate"], rates, strict=True):
        assert [value for value in row if value is not None] == pytest.approx(
            [v for v, x in zip(values, row, strict=True) if x is not None]
        )


# An adoption that did not end


def test_an_interrupted_adoption_is_never_trained(arrays: str, tmp_path: Path) -> None:
    weights = saved(small(classes=3, input_shape=None), tmp_path / "w.safetensors")
    out = tmp_path / "old"

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # after `run.json` was written
        adopt(OWN, arrays, out, weights=weights, device="cpu", report=interrupt)
    begun = Run.read(out)
    assert begun.status == "training"
    before = (out / "run.json").read_bytes()
    again = "adopt it again with: flipguard adopt"
    with pytest.raises(InputError, match=again):
        load_model(begun)
    with pytest.raises(InputError, match=again):
        read_predictions(out)
    with pytest.raises(InputError, match=again):
        trained(update("fd-lm", arrays, begun), tmp_path / "new")
    with pytest.raises(InputError, match=again):
        trained(update("elodi", arrays, guides=(str(out),) * 2), tmp_path / "new")
    for resume in (False, True):
        with pytest.raises(InputError, match="adopt it again with `flipguard adopt`"):
            train(begun.config, out, resume=resume)
    assert (out / "run.json").read_bytes() == before
    run = adopted(OWN, arrays, out, weights=weights)
    assert run.finished
    assert "adopted" in run.document
    assert torch.equal(
        load_model(run).state_dict()["out.weight"], small(classes=3, input_shape=None).out.weight
    )


def test_a_job_adopts_again_what_was_interrupted(arrays: str, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny(data=arrays, model=OWN), machine=Machine(device="cpu"))
    arguments = adopt_job_for(config, tmp_path / "key").arguments
    context = JobContext("key", lambda **_: None, lambda: False)
    assert adopt_job(arguments, context)
    document = Run.read(tmp_path / "key").document
    (tmp_path / "key" / "model.safetensors").unlink()
    (tmp_path / "key" / "run.json").write_text(json.dumps({**document, "status": "training"}))
    assert adopt_job(arguments, context)
    assert Run.read(tmp_path / "key").document == document


def test_an_adoption_leaves_a_run_that_was_begun_alone(arrays: str, tmp_path: Path) -> None:
    run = trained(update("none", arrays), tmp_path / "run")
    document = {**run.document, "status": "stopped"}
    (run.folder / "run.json").write_text(json.dumps(document))
    before = bytes_of(run.folder)
    with pytest.raises(InputError, match="there is a run in it"):
        adopted(OWN, arrays, run.folder)
    assert bytes_of(run.folder) == before


def test_guides_with_other_classes_than_the_data(arrays: str, tmp_path: Path) -> None:
    """Both guides have the same classes, but not those of the data."""
    weights = saved(small(classes=2, input_shape=None), tmp_path / "two.safetensors")
    run = adopted(OWN, arrays, tmp_path / "old", weights=weights, classes=["2", "0"])
    guides = (str(run.folder),) * 2
    with pytest.raises(InputError, match=r"`guides` to have the 3 classes .* lacks '1'; choose"):
        trained(update("ensemble", arrays, guides=guides), tmp_path / "mean")


# What it was trained on is not known


def notes_of(config: Any, out: Path) -> str:
    said: list[str] = []
    train(config, out, report=said.append)
    return "\n".join(line for line in said if "trained on" in line)


def test_its_training_samples_are_not_known(
    old: Run, larger: Run, arrays: str, tmp_path: Path
) -> None:
    unknown = f"it is not known whether {old.folder} was trained on samples of the validation split"
    config = update("none", arrays, old, scope=Scope(validation=0.2))
    assert notes_of(config, tmp_path / "new").startswith(unknown)
    # Nor are those of a run that starts from it, except its own.
    tuned = trained(
        update("none", arrays, old, model=OWN, fine_tune=True, scope=Scope(validation=0.2)),
        tmp_path / "tuned",
    )
    config = update("none", arrays, tuned, scope=Scope(validation=0.2))
    assert notes_of(config, tmp_path / "newer").startswith("it is not known")
    config = update("none", arrays, tuned, scope=Scope(validation=0.2, seed=1))
    assert f"{tuned.folder} was trained on" in notes_of(config, tmp_path / "newest")
    guides = (str(old.folder), str(larger.folder))
    config = update("elodi", arrays, guides=guides, options={"guide": "calibrated"})
    assert notes_of(config, tmp_path / "calibrated").count("held out to calibrate") == 2
