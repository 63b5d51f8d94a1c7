"""What a loss allocates, counted tensor by tensor while it runs on the CPU."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.losses.cases import CASES, Batch

LARGE = 1024, 500


class Peak(TorchDispatchMode):
    """The bytes of tensors made while it is on and still alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        }
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if not isinstance(leaf, torch.Tensor):
                continue
            storage = leaf.untyped_storage()
            key = storage._cdata
            if key in known or key in self.alive:
                continue
            self.alive[key] = storage.nbytes()
            weakref.finalize(storage, self.alive.pop, key, None)
        self.peak = max(self.peak, sum(self.alive.values()))
        return made


def large(dtype: torch.dtype = torch.float32) -> Batch:
    batch = Batch()
    torch.manual_seed(0)
    batch.new = torch.randn(LARGE).to(dtype).requires_grad_()
    batch.old = torch.randn(LARGE).to(dtype)
    batch.target = torch.randint(LARGE[1], LARGE[:1])
    batch.soft = torch.softmax(torch.randn(LARGE), -1)
    return batch


def peak_of(name: str, batch: Batch) -> float:
    """Forward and backward, gradient included, in units of the logits in single precision."""
    term, inputs = CASES[name](batch)
    with Peak() as peak:
        gradient = torch.autograd.grad(term(**inputs), batch.new)
    del gradient
    return peak.peak / (batch.new.numel() * 4)


# These hold old's head or class map for twenty classes, or a similarity of all pairs.
ELSEWHERE = {"bct", "ract", "fd-growth"}


@pytest.mark.parametrize("name", sorted(set(CASES) - ELSEWHERE))
def test_no_loss_takes_more_than_three_times_the_logits(name):
    allowed = 3.1  # and a few numbers a sample
    if name in ("codistill-skl", "codistill-l1"):
        allowed *= 2  # there are two models' logits
    if name == "muscle":
        allowed += 1  # it is two distillations, and the slope of the first is kept
    assert peak_of(name, large()) <= allowed


@pytest.mark.parametrize("name", ["fd-lm", "fd-kl", "entropy", "ldi", "naive"])
def test_half_precision_takes_no_more_than_single_precision(name):
    assert peak_of(name, large(torch.bfloat16)) <= peak_of(name, large()) + 0.6


def test_the_meter_counts():
    with Peak() as peak:
        first = torch.ones(1000)
        second = first + 1
        del first
        third = second * 2
        del second, third
    assert peak.peak == 8000
    assert not peak.alive
