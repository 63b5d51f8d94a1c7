"""Calling any model with any batch: a tensor, or the named tensors of a text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from flipguard.errors import InputError

Inputs = Tensor | Mapping[str, Any]
"""What a model is called with: a tensor of samples, or tensors by the names of its arguments."""


def classify(model: nn.Module, inputs: Inputs) -> Tensor:
    """The logits of a batch, be they what the model returns or its field `logits`.

    >>> import torch
    >>> classify(nn.Linear(2, 3), torch.zeros(4, 2)).shape
    torch.Size([4, 3])
    >>> classify(nn.Linear(2, 3), {"input": torch.zeros(4, 2)}).shape
    torch.Size([4, 3])
    """
    output = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None and isinstance(output, Mapping):
        logits = output.get("logits")
    if not isinstance(logits, Tensor):
        raise InputError(
            "Expected the model to return a tensor, or an object or mapping with `logits`, but got "
            f"{type(output).__name__}; give a model that returns the scores of all classes."
        )
    return logits


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, where it is compiled, averaged or spread over devices.

    >>> from torch.optim.swa_utils import AveragedModel
    >>> unwrapped(AveragedModel(nn.Linear(2, 3)))
    Linear(in_features=2, out_features=3, bias=True)
    """
    return wrappers(model)[-1]


def wrappers(model: nn.Module) -> list[nn.Module]:
    """What a model is wrapped in, the outermost first, and last the model itself."""
    found = [model]
    while True:
        # Wrappers hold the model as their only module, all under one of these two names.
        children = dict(found[-1].named_children())
        inner = children.get("_orig_mod", children.get("module"))
        if inner is None or len(children) != 1:
            return found
        found.append(inner)
