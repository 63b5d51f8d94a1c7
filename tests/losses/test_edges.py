"""Sizes, shapes and numbers at the limits of what a loss accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

from flipguard import InputError, losses
from flipguard.losses import SharedClasses, divergences
from tests.losses.cases import CASES, Batch, value_and_gradient


class Tokens(Batch):
    """The same samples as six texts of eight tokens."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("new", "old", "target", "soft"):
            setattr(self, name, getattr(self, name).detach().unflatten(0, (6, 8)))
        self.new.requires_grad_()


@pytest.mark.parametrize("name", [name for name in CASES if name != "ract"])
def test_tokens_are_samples(name: str):
    flat, folded = Batch(), Tokens()
    value, gradient = value_and_gradient(*CASES[name](flat)[:1], flat, CASES[name](flat)[1])
    term, inputs = CASES[name](folded)
    together, slopes = value_and_gradient(term, folded, inputs)
    torch.testing.assert_close(together, value)
    torch.testing.assert_close(slopes.flatten(0, 1), gradient)


def test_features_that_are_compared_with_each_other_are_a_list():
    term, inputs = CASES["ract"](Tokens())
    with pytest.raises(InputError, match=r"the shape \[samples, width\], but got \[6, 8, 20\]"):
        term(**inputs)


@pytest.mark.parametrize("classes", [40, 2561])
def test_the_highest_of_many_classes_are_those_of_each_token(classes: int):
    logits = torch.randn(2, 3, classes, generator=torch.Generator().manual_seed(0))
    found = divergences.highest(logits, 10).sort(-1).values
    assert torch.equal(found, logits.topk(10, -1).indices.sort(-1).values)


def test_a_long_match_is_shown_in_part():
    def shown(count: int) -> str:
        return repr(SharedClasses.by_index(range(count), old_count=count))

    assert shown(20) == f"SharedClasses({list(range(20))}, old_count=20)"
    start = ", ".join(map(str, range(20)))
    assert shown(21) == f"SharedClasses([{start}, … 21 in all], old_count=21)"


def test_old_head_on_the_features_of_tokens_is_that_on_a_list_of_them():
    made = torch.Generator().manual_seed(2)
    features = torch.randn(2, 3, 6, generator=made)
    weight, projection = (torch.randn(4, 5, generator=made), torch.randn(5, 6, generator=made))
    target = torch.randint(4, (2, 3), generator=made)
    arguments = {"weight": weight, "projection": projection, "reduction": "none"}
    together = losses.backward_compatible(new_features=features, target=target, **arguments)
    listed = losses.backward_compatible(
        new_features=features.flatten(0, 1), target=target.flatten(), **arguments
    )
    torch.testing.assert_close(together.flatten(), listed)


@pytest.mark.parametrize("classes", [2, 3])
def test_without_smoothing_a_confusion_is_a_table_of_shares(classes: int):
    predicted, target = torch.tensor([0, 1, 1, 1, 2, 2]), torch.tensor([0, 0, 1, 1, -100, 2])
    if classes == 2:
        predicted, target = predicted[:5], target[:5]
        predicted[4] = 7  # any prediction where there is no target
    found = losses.estimate_confusion(
        predicted=predicted, target=target, classes=classes, smoothing=1e-9
    )
    shares = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(found, shares[:classes, :classes], atol=1e-6, rtol=0)


def _function_of(module: type) -> Callable[..., object] | None:
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in module.__name__).lstrip("_")
    return getattr(losses, {"co_distillation": "codistillation"}.get(name, name), None)


PAIRS = [
    (module, function)
    for module in vars(losses).values()
    if isinstance(module, type) and (function := _function_of(module))
]


@pytest.mark.parametrize(("module", "function"), PAIRS, ids=lambda x: x.__name__)
def test_a_module_has_the_defaults_of_its_function(module, function):
    ours, its = (inspect.signature(x).parameters for x in (module, function))
    shared = [
        name
        for name in ours.keys() & its.keys()
        if inspect.Parameter.empty not in (ours[name].default, its[name].default)
    ]
    assert {n: ours[n].default for n in shared} == {n: its[n].default for n in shared}


def test_there_are_pairs_of_modules_and_functions():
    assert len(PAIRS) >= 12


@pytest.mark.parametrize("name", CASES)
def test_a_function_refuses_a_reduction_that_there_is_not(name: str):
    term, inputs = CASES[name](Batch())
    assert term.reduction == "mean"
    term.reduction = "average"
    with pytest.raises(InputError, match="Expected `reduction` to be one of 'mean', 'sum', 'none'"):
        term(**inputs)


@pytest.mark.parametrize("base", [0.0, 1.0, 2.0, 3.5])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_base_weighs_every_sample(base: float, reduction: str):
    batch = Batch()
    arguments = {"new": batch.new, "reference": batch.old, "reduction": reduction}
    once = losses.logit_difference_inhibition(**arguments)
    weighed = losses.logit_difference_inhibition(**arguments, base=base)
    torch.testing.assert_close(weighed, base * once)


def test_targets_beyond_the_classes_are_unknown_to_old():
    shared = SharedClasses.by_index([-1, 1, 0], old_count=2)
    found = shared.old_target(torch.tensor([-7, -1, 0, 1, 2, 3, 99]), unknown=-5)
    assert found.tolist() == [-5, -5, -5, 1, 0, -5, -5]


def test_matches_are_equal_where_they_match_the_same():
    one = SharedClasses.by_index([1, 0, -1], old_count=2)
    assert one == SharedClasses.by_index([1, 0, -1], old_count=2)
    assert one != SharedClasses.by_index([0, 1, -1], old_count=2)
    assert one != SharedClasses.by_index([1, 0, -1], old_count=3)
    assert one != (1, 0, -1)
    assert hash(one) == hash(SharedClasses.by_index([1, 0, -1], old_count=2))
