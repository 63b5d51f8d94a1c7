"""Checkpointing: a model's blocks recompute activations for the gradient, to save memory."""

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
    """Make the repeated blocks of a model recompute activations, and return their number.

    Results are those of the model without it: a block that is computed again draws the same random
    numbers, and batch normalisation counts a batch once.

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
    """Return the repeated blocks of a model, which can recompute their activations."""
    return list(_blocks([model]))


def _blocks(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yield the modules of the innermost lists of modules."""
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

    # A new class instead of an attribute of the module, which a copy of the module would share.
    block.__class__ = type(kind.__name__, (kind,), {"forward": forward})


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Keep the running statistics of batch normalisation unchanged, during a context."""
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    was = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, was, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
