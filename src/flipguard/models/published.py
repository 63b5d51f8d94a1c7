"""Weights that others have trained: their preprocessing, their classes, and their state dict.

They are those that timm, torchvision or a folder of Transformers publishes, or a file.
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flipguard.errors import InputError, printable
from flipguard.files import sha256_of
from flipguard.models.classes import Labels
from flipguard.models.hugging_face import PREFIX, path_of, published_classifier
from flipguard.models.libraries import library, refusing
from flipguard.models.preprocessing import HALF, INTERPOLATIONS, Preprocessing
from flipguard.models.registry import build_model, check_spec
from flipguard.models.shapes import Shape
from flipguard.models.weights import State, count_of, fitting, named_as, read_weights

IMAGENET = 1000  # classes
UNNAMED = re.compile(r"LABEL_\d+")
# With published weights, torchvision scales the inputs inside these models. With mean and
# deviation 0.5, the network gets the same values.
SCALED_INSIDE = ("googlenet", "inception_v3")
# Pillow's numbers of filters, which image processors store.
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
PUBLISHED = "a model with published weights on this machine"
OR_A_FILE = "name a file of weights (`weights=`), or another model"
# The largest difference from the library's tensors that is allowed: resizing differs by library.
APART = 4 / 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A state dict that was trained elsewhere, for a model with `classes` outputs."""

    state: dict[str, Tensor]
    classes: int
    labels: Labels | None  # None if the weights name no classes
    origin: str  # in words
    sha256: str
    missing: tuple[str, ...] = ()  # tensors that are not published, and so were drawn at random
    notes: tuple[str, ...] = ()


def published_preprocessing(spec: str, weights: str | None = None) -> Preprocessing | None:
    """Return the preprocessing of a library's weights; None if the library tells none.

    >>> published_preprocessing("torchvision:resnet18").resize
    (256,)
    """
    kind, rest = check_spec(spec)
    name = rest.partition(":")[0]
    if kind == "timm":
        return _of_timm(spec, name)
    if kind == "torchvision":
        return _of_torchvision(spec, name, weights)
    if kind == "hf":
        return _of_transformers(spec)
    return None


def _of_timm(spec: str, name: str) -> Preprocessing:
    timm = library("timm", what=f"The model '{spec}'")
    with refusing(spec):
        told = timm.get_pretrained_cfg(name)
        found = timm.data.resolve_data_config(pretrained_cfg=told.to_dict() if told else {})
    height, width = found["input_size"][1:]
    larger = tuple(math.floor(side / found["crop_pct"]) for side in (height, width))
    squashed = found["crop_mode"] == "squash"
    if found["crop_mode"] == "border" or (not squashed and height != width):
        raise _inexpressible(spec, f"the crop mode {found['crop_mode']} of {height} x {width}")
    mode = found["interpolation"]
    return Preprocessing(
        input_size=(height, width),
        resize=larger if squashed else larger[:1],
        interpolation=mode if mode in INTERPOLATIONS else "bilinear",
        mean=tuple(found["mean"]),
        std=tuple(found["std"]),
        centre="even",
    )


def _of_torchvision(spec: str, name: str, weights: str | None) -> Preprocessing | None:
    chosen = _torchvision_weights(spec, name, weights)
    if chosen is None:
        return None
    found = chosen.transforms()
    (size,), resize = found.crop_size, found.resize_size
    plain = name in SCALED_INSIDE
    return Preprocessing(
        input_size=(size, size),
        resize=tuple(resize),
        interpolation=found.interpolation.value,
        mean=(HALF,) * 3 if plain else tuple(found.mean),
        std=(HALF,) * 3 if plain else tuple(found.std),
        centre="even",
    )


def assumed_preprocessing(spec: str, weights: str | None) -> str | None:
    """Return a note if the weights in a file have the preprocessing of others; None if not."""
    kind, rest = check_spec(spec)
    if kind != "torchvision" or weights is None or is_published_name(spec, weights):
        return None
    name = rest.partition(":")[0]
    chosen = _torchvision_weights(spec, name, weights)
    if chosen is None or _file_of(chosen) == Path(weights).name:
        return None
    return (
        f"{Path(weights).name} is no file of torchvision: its preprocessing is assumed to be that "
        f"of {chosen.name}"
    )


def _torchvision_weights(spec: str, name: str, weights: str | None) -> Any:
    """Return published weights by their name or file name, else the default ones, or None."""
    models = library("torchvision", what=f"The model '{spec}'").models
    if name not in models.list_models(module=models):
        build_model(spec, classes=2, input_shape=None)  # raises, with names like it
    with refusing(spec):
        known = models.get_model_weights(name)
    if weights is not None and weights in known.__members__:
        return known[weights]
    default = getattr(known, "DEFAULT", None)
    file = None if weights is None else Path(weights).name
    return next((one for one in known if _file_of(one) == file), default)


def _file_of(weights: Any) -> str:
    """Return the name of the file in which torchvision publishes weights."""
    return str(weights.url).rpartition("/")[2]


def is_published_name(spec: str, weights: str) -> bool:
    """Return whether a text names weights of torchvision, such as IMAGENET1K_V1."""
    kind, rest = check_spec(spec)
    if kind != "torchvision" or "." in weights or "/" in weights:
        return False
    models = library("torchvision", what=f"The model '{spec}'").models
    name = rest.partition(":")[0]
    known = name in models.list_models(module=models)
    return known and weights in models.get_model_weights(name).__members__


def _of_transformers(spec: str) -> Preprocessing | None:
    """Return the preprocessing of the image processor in a folder; None if it has none."""
    transformers = library("transformers", what=f"The model '{spec}'")
    folder = Path(path_of(spec))
    folder = folder.parent if folder.is_file() else folder
    if not (folder / "preprocessor_config.json").is_file():
        return None
    with refusing(spec, expected="a folder with an image processor"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    told = processor.to_dict()
    try:
        found = _of_processor(told)
    except (KeyError, TypeError, ValueError, InputError) as problem:
        raise _inexpressible(spec, f"{type(processor).__name__} ({problem})") from problem
    _check_equal(spec, processor, found)
    return found


def _of_processor(told: Mapping[str, Any]) -> Preprocessing:
    size = _sizes(told["size"])
    crop = size if not told.get("do_center_crop") else _sizes(told["crop_size"])
    if not told.get("do_resize"):
        raise ValueError("it resizes nothing")
    shorter = "shortest_edge" in told["size"] and told["size"]["shortest_edge"]
    share = told.get("crop_pct")
    if share and shorter:  # ConvNeXt: small images are cropped, and large ones squashed
        crop, size = (shorter,) * 2, (shorter,) * 2 if shorter >= 384 else (int(shorter / share),)
    elif shorter:
        size = (shorter,)
    # Values are multiplied by a factor, and then a mean of these products is subtracted.
    factor = 255 * (told["rescale_factor"] if told.get("do_rescale") else 1)
    mean, std = (told["image_mean"], told["image_std"]) if told.get("do_normalize") else ([0], [1])
    mean, std = ([one] if isinstance(one, int | float) else one for one in (mean, std))
    return Preprocessing(
        input_size=(crop[0], crop[-1]),
        resize=size,
        interpolation=RESAMPLING[int(told["resample"])],  # type: ignore[arg-type]
        mean=tuple(one / factor for one in mean),
        std=tuple(one / factor for one in std),
        centre="down",
    )


def _sizes(told: Any) -> tuple[int, ...]:
    if isinstance(told, int):
        return told, told
    if "shortest_edge" in told:
        return (told["shortest_edge"],) * 2
    return told["height"], told["width"]


def _check_equal(spec: str, processor: Any, found: Preprocessing) -> None:
    """Raise if an image processor does more than a resize, a crop and a scaling."""
    pillow = library("PIL.Image", what=f"The model '{spec}'")
    rows, columns = np.mgrid[0:97, 0:61]
    waves = [127 + 120 * np.sin(rows / 9 + columns / (5 + 3 * c) + c) for c in range(3)]
    image = pillow.fromarray(np.stack(waves, -1).astype(np.uint8))
    expected = processor(images=image, return_tensors="pt")["pixel_values"]
    ours = found.scaled(found.pixels(image)[None].float() / 127.5 - 1)
    same = expected.shape == ours.shape and bool(
        ((expected - ours).abs() <= APART / min(found.std)).all()
    )
    if not same:
        raise _inexpressible(spec, f"{type(processor).__name__}, whose tensors differ")


def _inexpressible(spec: str, what: str) -> InputError:
    return InputError(
        f"Expected the preprocessing of '{printable(spec)}' to be a resize, a centre crop and a "
        f"scaling, but got {printable(what)}; give it yourself by "
        "`preprocessing.input_size`, `preprocessing.resize`, `preprocessing.interpolation`, "
        "`preprocessing.mean` and `preprocessing.std`."
    )


def published_weights(
    spec: str,
    *,
    weights: str | None,
    classes: int,
    input_shape: Shape | None,
    named: bool = False,
) -> Published:
    """Return the weights of a library, or those in a file.

    Args:
        spec: The model.
        weights: A file, the name of weights of torchvision, or None for those that the library
            publishes; a function (``python:``) brings its own.
        classes: The number of classes of a file whose own number cannot be told.
        input_shape: The shape of the inputs that reach the model.
        named: Whether the user named all classes, so that `classes` is certain.
    """
    kind, rest = check_spec(spec)
    missing: Sequence[str] = ()
    if weights is not None and not is_published_name(spec, weights):
        return _from_file(spec, Path(weights), classes, input_shape, named=named)
    if kind in ("timm", "torchvision"):
        get = _timm_model if kind == "timm" else _torchvision_model
        model, labels, told = get(spec, rest.partition(":")[0], weights, input_shape)
    elif kind == "hf":
        model, configuration, missing = published_classifier(path_of(spec), input_shape=input_shape)
        labels, told, classes = (
            labels_of(configuration),
            f"the weights in {path_of(spec)}",
            configuration.num_labels,
        )
    elif kind == "python":
        model, labels = build_model(spec, classes=classes, input_shape=input_shape, seed=0), None
        told = f"the weights that {rest} gives"
    else:
        raise InputError(
            f"Expected weights for '{printable(spec)}', but flipguard publishes none; name a file "
            "by `weights=`."
        )
    count = classes if labels is None else len(labels)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return Published(
        state=state,
        classes=count,
        labels=labels,
        origin=told,
        sha256=tensors_digest(state),
        missing=tuple(missing),
    )


def _from_file(
    spec: str, path: Path, classes: int, input_shape: Shape | None, *, named: bool
) -> Published:
    labels = _labels_in_folder(spec) or _labels_of_file(spec, path)
    found = read_weights(path)
    count = classes if named or labels is None else len(labels)
    own = build_model(spec, classes=count, input_shape=input_shape, seed=0).state_dict()
    found = named_as(found, own)
    if not named and (other := count_of(found.state, own, classes=count)) != count:
        count, labels = other, None
        own = build_model(spec, classes=count, input_shape=input_shape, seed=0).state_dict()
    return Published(
        state=fitting(found.state, own, path=str(path), spec=spec),
        classes=count,
        labels=labels,
        origin=f"the weights in {path.name}",
        sha256=sha256_of(path),
        notes=tuple(f"{path.name}: {note}" for note in found.notes),
    )


def _timm_model(
    spec: str,
    name: str,
    weights: str | None,  # noqa: ARG001
    input_shape: Shape | None,
) -> tuple[nn.Module, Labels | None, str]:
    timm = library("timm", what=f"The model '{spec}'")
    told = timm.get_pretrained_cfg(name)
    asked: dict[str, Any] = {} if input_shape is None else {"in_chans": input_shape[0]}
    if input_shape is not None and told is not None and told.fixed_input_size:
        asked["img_size"] = input_shape[1:]
    with refusing(spec, expected=PUBLISHED, advice=OR_A_FILE):
        model = timm.create_model(name, pretrained=True, **asked)
    labels: Labels | None = None
    if told.label_names:
        labels = [(label,) for label in told.label_names]
    elif (subset := timm.data.infer_imagenet_subset(told.to_dict())) is not None:
        known = timm.data.ImageNetInfo(subset)
        labels = [
            (label, known.index_to_description(index))
            for index, label in enumerate(known.label_names())
        ]
    if labels is not None and len(labels) != model.num_classes:
        labels = None
    return model, labels, f"timm's published weights {told.tag or told.architecture}"


def _torchvision_model(
    spec: str,
    name: str,
    weights: str | None,
    input_shape: Shape | None,  # noqa: ARG001
) -> tuple[nn.Module, Labels | None, str]:
    models = library("torchvision", what=f"The model '{spec}'").models
    chosen = _torchvision_weights(spec, name, weights)
    if chosen is None:
        raise InputError(
            f"Expected '{spec}' to have published weights, but torchvision has none; name a file "
            "by `weights=`."
        )
    # Without their auxiliary heads, which models that are built anew have, they would not fit.
    asked = {"aux_logits": True} if name in SCALED_INSIDE else {}
    with (
        refusing(spec, expected=PUBLISHED, advice=OR_A_FILE),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="auxiliary heads", category=UserWarning)
        model = models.get_model(name, weights=chosen, progress=False, **asked)
    return model, _categories_of(chosen), f"torchvision's published weights {chosen.name}"


def _labels_of_file(spec: str, path: Path) -> Labels | None:
    """Return the classes of a file of torchvision, which is known by its name."""
    kind, rest = check_spec(spec)
    if kind != "torchvision":
        return None
    chosen = _torchvision_weights(spec, rest.partition(":")[0], str(path))
    known = chosen is not None and _file_of(chosen) == path.name
    return _categories_of(chosen) if known else None


def _categories_of(weights: Any) -> Labels | None:
    """Return the classes of weights that torchvision publishes."""
    categories = weights.meta.get("categories")
    return None if categories is None else _with_synsets(categories)


def _with_synsets(categories: Sequence[str]) -> Labels:
    """Return ImageNet's classes also by the names of its folders, if timm is there to tell them."""
    if len(categories) != IMAGENET:
        return [(category,) for category in categories]
    try:
        known = library("timm", what="The names of ImageNet's folders").data.ImageNetInfo()
    except InputError:
        return [(category,) for category in categories]
    return list(zip(known.label_names(), categories, strict=True))


def _labels_in_folder(spec: str) -> Labels | None:
    if not spec.startswith(PREFIX):
        return None
    transformers = library("transformers", what=f"The model '{spec}'")
    with refusing(spec, expected="a model of Transformers on this machine"):
        told = transformers.AutoConfig.from_pretrained(path_of(spec), local_files_only=True)
    return labels_of(told)


def labels_of(configuration: Any) -> Labels | None:
    """Return the classes that a configuration of Transformers names; None if it names none."""
    names = [str(configuration.id2label[index]) for index in range(configuration.num_labels)]
    return None if all(map(UNNAMED.fullmatch, names)) else [(name,) for name in names]


def tensors_digest(state: State) -> str:
    """Return a sha256 of the names and numbers of tensors, in order of the names."""
    seen = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        seen.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        seen.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return seen.hexdigest()
