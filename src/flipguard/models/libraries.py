"""Models of timm, torchvision and user code, which are imported only if they are needed.

Each function checks what it can and returns a maker. Only the maker draws random numbers.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, get_type_hints

from torch import nn

from flipguard.errors import InputError, MissingExtraError, listed, printable
from flipguard.models.shapes import Shape, full_image
from flipguard.specs import Number

Maker = Callable[[], nn.Module]
# All of torchvision's models have a stem for three channels, and no option for another.
COLOURS = 3


def library(name: str, *, what: str) -> ModuleType:
    """Import and return a library of the extra `train`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name != name:
            raise
        raise MissingExtraError(what, package=name, extra="train") from problem


def specs_named(name: str) -> list[str]:
    """Return how the installed libraries' models of this name are written.

    >>> specs_named("vit_b_16"), specs_named("no_such_model")
    (['torchvision:vit_b_16'], [])
    """
    found = []
    with suppress(MissingExtraError):
        models = library("torchvision", what="Its models").models
        if name in models.list_models(module=models):
            found.append(f"torchvision:{name}")
    with suppress(MissingExtraError):
        if library("timm", what="Its models").is_model(name.partition(".")[0]):
            found.append(f"timm:{name}")
    return found


@contextmanager
def refusing(
    spec: str,
    input_shape: Shape | None = None,
    *,
    expected: str = "a model that can be made",
    advice: str = "choose another model, input shape or source of weights",
) -> Iterator[None]:
    """Turn any exception of a library into an error of one sentence."""
    try:
        yield
    except Exception as problem:  # libraries may raise any exception
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        shape = "" if input_shape is None else f" for inputs {input_shape}"
        raise InputError(
            f"Expected '{spec}' to be {expected}{shape}, but got "
            f"{type(problem).__name__}: {printable(lines[0]).rstrip('.')}; {advice}."
        ) from problem


def timm_maker(
    name: str,
    *,
    classes: int,
    input_shape: Shape | None,
    options: Mapping[str, Number],
) -> Maker:
    """Return a maker of a timm model for the images' channels and, if it needs it, their size."""
    spec = f"timm:{name}"
    timm = library("timm", what=f"The model '{spec}'")
    if not timm.is_model(name.partition(".")[0]):
        raise _unknown(spec, name, timm.list_models())
    arguments: dict[str, Any] = {"num_classes": classes, "drop_rate": options["dropout"]}
    with refusing(spec):
        configuration = timm.get_pretrained_cfg(name)
    if input_shape is not None:
        grid = full_image(spec, input_shape)
        arguments["in_chans"] = grid.channels
        # Most networks accept any size, and have no argument for it.
        if configuration is not None and configuration.fixed_input_size:
            arguments["img_size"] = grid.sizes

    def make() -> nn.Module:
        with refusing(spec, input_shape):
            model: nn.Module = timm.create_model(name, **arguments)
        return model

    return make


def torchvision_maker(
    name: str, *, classes: int, input_shape: Shape | None, dropout: Number | None = None
) -> Maker:
    """Return a maker of a torchvision classifier; without `dropout`, with its own rate."""
    spec = f"torchvision:{name}"
    models = library("torchvision", what=f"The model '{spec}'").models
    known = models.list_models(module=models)
    if name not in known:
        raise _unknown(spec, name, known)
    arguments: dict[str, Any] = {"num_classes": classes}
    if dropout is not None:
        arguments[_dropout_argument(spec, models.get_model_builder(name))] = dropout
    if input_shape is not None:
        grid = full_image(spec, input_shape)
        if grid.channels != COLOURS:
            raise InputError(
                f"Expected `input_shape` to have {COLOURS} channels for '{spec}', but got "
                f"{input_shape}; repeat the channel, or use a model of timm, which takes any "
                "number."
            )
        if name.startswith("vit_"):
            arguments["image_size"] = _side(spec, grid.sizes)
        if name.startswith("maxvit"):
            arguments["input_size"] = grid.sizes

    def make() -> nn.Module:
        with refusing(spec, input_shape), warnings.catch_warnings():
            # Two old models warn that their initial weights will change in a future version.
            warnings.filterwarnings("ignore", category=FutureWarning, module="torchvision")
            model: nn.Module = models.get_model(name, **arguments)
        return model

    return make


def _dropout_argument(spec: str, builder: Callable[..., nn.Module]) -> str:
    """Return the name of the argument of a torchvision model that sets its dropout."""
    kind = get_type_hints(builder)["return"]
    for name in ("dropout", "drop_rate"):
        if name in inspect.signature(kind).parameters:
            return name
    raise InputError(
        f"Expected a model of torchvision that takes a rate of dropout, but got '{spec}', and "
        f"{kind.__name__} takes none; choose a model of timm, where every model can, or another "
        "one of torchvision, such as vgg11 or densenet121."
    )


def python_maker(address: str, *, classes: int, input_shape: Shape | None) -> Maker:
    """Return a maker that calls the user's function with `classes` and `input_shape`."""
    spec = f"python:{address}"
    place, _, name = address.partition(":")
    if not place or not name:
        raise InputError(
            "Expected `model` to be python:package.module:function, but got "
            f"{listed([spec])}; name the module and the function in it."
        )
    try:
        factory: Any = importlib.import_module(place)
    except ModuleNotFoundError as problem:
        # A missing module that the user's module imports is another error.
        if problem.name is None or not f"{place}.".startswith(f"{problem.name}."):
            raise
        raise InputError(
            f"Expected '{spec}' to name a module that Python finds, but got no '{problem.name}'; "
            "install it, or put its folder on PYTHONPATH."
        ) from problem
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise InputError(
            f"Expected '{spec}' to name a function, but got {_kind(factory)}; define it in "
            f"{place} with the arguments `classes` and `input_shape`."
        )

    with suppress(ValueError):  # Python cannot tell the arguments of a few callables
        try:
            inspect.signature(factory).bind(classes=classes, input_shape=input_shape)
        except TypeError as problem:
            raise InputError(
                f"Expected '{spec}' to take the arguments `classes` and `input_shape` and to need "
                f"no others, but Python says: {problem}; change its arguments."
            ) from problem

    def make() -> nn.Module:
        model = factory(classes=classes, input_shape=input_shape)
        if not isinstance(model, nn.Module):
            raise InputError(
                f"Expected '{spec}' to return a torch.nn.Module, but got {_kind(model)}; return "
                "the model itself."
            )
        return model

    return make


def _unknown(spec: str, name: str, known: list[str]) -> InputError:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return InputError(
        f"Expected '{printable(spec)}' to name a model of {spec.partition(':')[0]}, but got none "
        f"of that name; its {len(known):,} models include {listed(close or known)}."
    )


def _side(spec: str, sizes: Shape) -> int:
    if sizes[0] != sizes[1]:
        raise InputError(
            f"Expected `input_shape` to be square for '{spec}', but got {sizes}; crop or pad the "
            "images, or choose another model."
        )
    return sizes[0]


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
