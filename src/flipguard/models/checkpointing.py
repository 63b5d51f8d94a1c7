"""Less memory for more time: a model's blocks compute their activations again for the gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from flipguard.errors import InputError

Context = AbstractContextManager[None]
CONTAINERS = (nn.Sequential, nn.ModuleList)


def checkpoint_blocks(model: nn.Module) -> int:
    """Makes the repeated blocks of a model forget their activations; says how many there are.

    Results are those of the same model without it: random numbers are drawn alike when a block is
    computed again, and batch normalisation counts a batch once.

    >>> from torch import nn
    >>> block = lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> checkpoint_blocks(nn.Sequential(nn.Linear(4, 4), nn.Sequential(block(), block())))
    2
    """
    blocks = blocks_of(model)
    if not blocks:
        raise InputError(
            "Expected a model of repeated blocks, whose activations can be computed again, but "
            f"found none in {type(model).__name__}; leave `machine.checkpointing` out."
        )
    for block in blocks:
        _forget(block)
    return len(blocks)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model, whose activations can be computed again."""
    return list(_blocks([model]))


def _blocks(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """The blocks of the innermost stages: what is a list of modules that are no lists of such."""
    for module in modules:
        parts = list(module.children())
        if not (isinstance(module, CONTAINERS) and any(map(_is_composite, parts))):
            yield from _blocks(parts)
            continue
        for part in parts:
            inner = list(_blocks([part])) if isinstance(part, CONTAINERS) else []
            if inner:
                yield from inner
            elif _is_composite(part):
                yield part


def _is_composite(module: nn.Module) -> bool:
    learns = any(True for _ in module.parameters())
    return learns and any(True for _ in module.children())


def _forget(block: nn.Module) -> None:
    kind = type(block)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return kind.forward(self, *args, **kwargs)

        def contexts() -> tuple[Context, Context]:
            return nullcontext(), _statistics_kept(self)

        return checkpoint(
            kind.forward, self, *args, use_reentrant=False, context_fn=contexts, **kwargs
        )

    # A class of its own, and not a function on the module: that would follow a copy of the module.
    block.__class__ = type(kind.__name__, (kind,), {"forward": forward})


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Batch normalisation as in training, which leaves its running statistics as they are."""
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    was = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, was, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
