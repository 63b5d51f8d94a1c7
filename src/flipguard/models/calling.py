"""Calls of any model with any batch, for its logits, its features and its head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from flipguard.errors import InputError

Inputs = Tensor | Mapping[str, Any]
"""The inputs of a model: a tensor of samples, or a mapping from argument names to tensors."""

# Names of the last layer in flipguard's networks and timm, torchvision, and Transformers.
HEAD_NAMES = ("head", "fc", "heads", "classifier", "score", "classification_head", "logits_proj")


def classify(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the logits of a batch: the model's output, or its field `logits`.

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
    """Return the model inside of wrappers that compile, average or distribute it.

    >>> from torch.optim.swa_utils import AveragedModel
    >>> unwrapped(AveragedModel(nn.Linear(2, 3)))
    Linear(in_features=2, out_features=3, bias=True)
    """
    return wrappers(model)[-1]


def wrappers(model: nn.Module) -> list[nn.Module]:
    """Return a model's wrappers, outermost first, and last the model itself."""
    found = [model]
    while True:
        # Wrappers have the model as their only module, under one of these two names.
        children = dict(found[-1].named_children())
        inner = children.get("_orig_mod", children.get("module"))
        if inner is None or len(children) != 1:
            return found
        found.append(inner)


class Classified(NamedTuple):
    """The results of one forward pass: logits, and the features that the head got."""

    logits: Tensor  # float [N, C]
    features: Tensor  # float [N, D]: the input of the head


def head_of(model: nn.Module) -> nn.Linear:
    """Return the linear layer that turns a model's features into its logits.

    It is the layer that timm's `get_classifier()` returns, or the last linear layer of the first
    attribute that exists among `head`, `fc`, `heads`, `classifier`, `score`, `classification_head`
    and `logits_proj`. In other models it is the last linear layer that the model defines.

    >>> head_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    Linear(in_features=8, out_features=3, bias=True)
    """
    model = unwrapped(model)
    named = getattr(model, "get_classifier", None)
    if callable(named):
        layers = named()
        if not isinstance(layers, nn.Module):
            raise InputError(
                f"Expected {_name(model)} to have one head, but got "
                f"{len(layers) if isinstance(layers, tuple | list) else type(layers).__name__}; "
                "name the one to use, or choose a model without distillation."
            )
        return _last_linear(layers, of=model)
    for place in HEAD_NAMES:
        layer = getattr(model, place, None)
        if isinstance(layer, nn.Module):
            return _last_linear(layer, of=model)
    return _last_linear(model, of=model)


class with_features:
    """A callable around a model that returns its features along with its logits.

    One forward pass gives both. A hook on the head exists only during the call, so neither the
    model nor its state dict is changed. The callable is not a module. `head` is :func:`head_of` the
    model if it is not given.

    A compiled model does not check for new hooks: compile the function that calls this instead.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> logits, features = with_features(model)(torch.zeros(2, 4))
    >>> logits.shape, features.shape, bool((model[-1](features) == logits).all())
    (torch.Size([2, 3]), torch.Size([2, 8]), True)
    """

    __slots__ = ("head", "model")

    def __init__(self, model: nn.Module, *, head: nn.Linear | None = None) -> None:
        if any(hasattr(layer, "_orig_mod") for layer in wrappers(model)):
            raise InputError(
                f"Expected {_name(model)} not to be compiled, but got a compiled one; compile the "
                "function that calls `with_features(model)`, of which the model is a part."
            )
        self.model = model
        self.head = head_of(model) if head is None else head

    def __call__(self, inputs: Inputs) -> Classified:
        with _seen_by(self.head) as seen:
            logits = classify(self.model, inputs)
        if len(seen) != 1:
            raise InputError(
                f"Expected {_name(self.model)} to call its head once in a forward pass, but got "
                f"{len(seen)} calls; give the layer that makes its logits as `head`."
            )
        features = seen[0]
        if features.dim() != 2:
            raise InputError(
                "Expected the features to have the shape [samples, width], but got "
                f"{list(features.shape)}; use a model that pools places or tokens before its head."
            )
        if logits.shape != (features.shape[0], self.head.out_features):
            raise InputError(
                f"Expected the head of {_name(self.model)} to give its logits, "
                f"{list(logits.shape)}, but got one that gives "
                f"{[features.shape[0], self.head.out_features]}; give the right layer as `head`."
            )
        return Classified(logits=logits, features=features)


@contextmanager
def _seen_by(head: nn.Linear) -> Iterator[list[Tensor]]:
    """Collect the inputs of the head in a list, during a context."""
    seen: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else kwargs["input"])

    handle = head.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def _last_linear(layer: nn.Module, *, of: nn.Module) -> nn.Linear:
    found = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    if not found:
        raise InputError(
            f"Expected {_name(of)} to end in a linear layer, but got {type(layer).__name__} "
            "without one; methods on features need a model whose logits are linear in them."
        )
    return found[-1]


def _name(model: nn.Module) -> str:
    return f"the model {type(unwrapped(model)).__name__}"
