"""State dicts in files: reading them safely, names that others give, and the first differences."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flipguard.errors import InputError, listed, printable
from flipguard.models.libraries import library

State = Mapping[str, Tensor]

# Under which names a training script keeps the state dict, and what wrappers put before each name.
TABLES = (
    "state_dict",
    "model",
    "model_state_dict",
    "state_dict_ema",
    "model_ema",
    "weights",
    "net",
)
PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
COUNTER = (
    ".num_batches_tracked"  # of batch normalisation; old files lack it, and it changes nothing
)
TOLD = 3  # differences that an error names


class Weights(NamedTuple):
    """A state dict, and what had to be taken off to find it."""

    state: dict[str, Tensor]
    notes: tuple[str, ...]


def read_weights(path: Path) -> Weights:
    """Return the state dict in a .safetensors, .pt, .pth or .bin file; no code in it is run."""
    try:
        if path.suffix == ".safetensors":
            found: Any = library("safetensors.torch", what=str(path)).load_file(str(path))
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as problem:
        raise InputError(
            f"Expected the weights {printable(str(path))}, but there is no such file; check the "
            "path."
        ) from problem
    except pickle.UnpicklingError as problem:
        raise InputError(
            f"Expected {printable(str(path))} to hold tensors only, but it holds other objects, "
            "which could run code when they are read; save `model.state_dict()` as .safetensors."
        ) from problem
    except Exception as problem:  # damaged files raise anything
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        raise InputError(
            f"Expected {printable(str(path))} to be a state dict in a .safetensors, .pt or .pth "
            f"file, but it cannot be read ({printable(lines[0]).rstrip('.')}); save it again."
        ) from problem
    notes = []
    while isinstance(found, Mapping) and (name := _table(found)) is not None:
        notes.append(f"the state dict is in its table '{name}'")
        found = found[name]
    tensors = isinstance(found, Mapping) and {
        str(name): value for name, value in found.items() if isinstance(value, Tensor)
    }
    if not tensors:
        raise InputError(
            f"Expected {printable(str(path))} to hold a state dict of tensors, but got "
            f"{_kind(found)}; save `model.state_dict()`."
        )
    return Weights(tensors, tuple(notes))


def _table(found: Mapping[Any, Any]) -> str | None:
    """Return the name under which a mapping holds a state dict, if it is not one itself."""
    if any(isinstance(value, Tensor) for value in found.values()):
        return None
    inside = (name for name in TABLES if isinstance(found.get(name), Mapping))
    return next(inside, None)


def _kind(found: Any) -> str:
    if isinstance(found, Mapping):
        return f"a table of {listed(found)}" if found else "an empty table"
    return type(found).__name__


def named_as(weights: Weights, wanted: State) -> Weights:
    """Return weights without the prefixes of wrappers, if a model's names have none."""
    state, best, notes = weights.state, _shared(weights.state, wanted), weights.notes
    for shorter, taken in _without_prefixes(weights.state):
        if (count := _shared(shorter, wanted)) > best:
            state, best = shorter, count
            notes = (*weights.notes, f"the prefix '{taken}' is taken off its names")
    return Weights(dict(state), notes)


def _without_prefixes(state: dict[str, Tensor]) -> Iterator[tuple[dict[str, Tensor], str]]:
    taken = ""
    while prefix := next((one for one in PREFIXES if all(n.startswith(one) for n in state)), None):
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
        taken += prefix
        yield state, taken


def _shared(state: State, wanted: State) -> int:
    return len(state.keys() & wanted.keys())


def weight_differences(state: State, wanted: State) -> list[str]:
    """Return how the tensors of a file differ from those of a model, in words.

    >>> weight_differences({"a": torch.zeros(2)}, {"a": torch.zeros(3), "b": torch.zeros(1)})
    ["'a' is [2] in the file and [3] in the model", "'b' [1] is in the model alone"]
    """
    found = []
    for name, tensor in wanted.items():
        if name not in state:
            if not name.endswith(COUNTER):
                found.append(f"'{name}' {list(tensor.shape)} is in the model alone")
        elif state[name].shape != tensor.shape:
            here, there = list(state[name].shape), list(tensor.shape)
            found.append(f"'{name}' is {here} in the file and {there} in the model")
    found += [
        f"'{printable(name)}' {list(tensor.shape)} is in the file alone"
        for name, tensor in state.items()
        if name not in wanted
    ]
    return found


def fitting(state: State, wanted: State, *, path: str, spec: str) -> dict[str, Tensor]:
    """Return weights in the order and number types of a model, or raise the first differences."""
    if found := weight_differences(state, wanted):
        more = f", and {len(found) - TOLD:,} more differ" if len(found) > TOLD else ""
        raise InputError(
            f"Expected {printable(path)} to hold the weights of {printable(spec)}, but "
            f"{', '.join(found[:TOLD])}{more}; name the architecture that they belong to."
        )
    return {name: state.get(name, own).to(own.dtype) for name, own in wanted.items()}


def count_of(state: State, wanted: State, *, classes: int) -> int:
    """Return the number of classes of weights, for the state of a model with `classes`.

    >>> count_of({"a": torch.zeros(5, 2)}, {"a": torch.zeros(3, 2)}, classes=3)
    5
    """
    counts = {
        int(tensor.shape[0])
        for name, own in wanted.items()
        if (tensor := state.get(name)) is not None
        and tensor.shape != own.shape
        and own.shape[:1] == (classes,)
        and tensor.shape[1:] == own.shape[1:]
    }
    return counts.pop() if len(counts) == 1 else classes
