"""What must not pass in silence: second derivatives, swaps, garbage where nothing counts."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from flipguard import InputError
from flipguard.losses import (
    CoDistillation,
    FocalDistillation,
    Muscle,
    NaiveCongruence,
    SharedClasses,
    StrictImitation,
)
from tests.losses.cases import CASES, GROWN, Batch

# RACT and soft BCT are followed by autograd itself, and so have second derivatives.
FOLLOWED = {"ract"}


@pytest.mark.parametrize("name", sorted(set(CASES) - FOLLOWED))
def test_a_second_derivative_is_refused(name):
    batch = Batch()
    weights = torch.ones(batch.new.shape[-1], requires_grad=True)
    batch.new = batch.new.detach() * weights
    term, inputs = CASES[name](batch)
    # Together with another loss, as in training: the gradient itself may be used.
    loss = F.cross_entropy(batch.new, batch.target) + term(**inputs)
    (gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
    assert torch.isfinite(gradient).all()
    with pytest.raises(InputError, match="a second derivative was asked for"):
        torch.autograd.grad(gradient.square().sum(), weights)


def test_a_second_derivative_that_exists_is_right():
    batch = Batch(dtype=torch.float64)
    weights = torch.ones(batch.new.shape[-1], dtype=torch.float64, requires_grad=True)
    start = batch.new.detach()

    def loss(scale):
        batch.new = start * scale
        term, inputs = CASES["ract"](batch)
        return term(**inputs)

    assert torch.autograd.gradgradcheck(loss, weights)


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "term",
    [
        FocalDistillation(),
        FocalDistillation(distance="kl"),
        FocalDistillation(distance="kl", direction="reverse"),
        NaiveCongruence(),
        StrictImitation(),
        Muscle(),
    ],
    ids=repr,
)
def test_an_ignored_sample_may_hold_anything(term, rubbish):
    batch = Batch()
    clean = {"new": batch.new, "old": batch.old, "target": batch.target}
    expected = term(**clean)
    (wanted,) = torch.autograd.grad(expected, batch.new)
    ignored = batch.target == -100
    assert ignored.any()
    new = batch.new.detach().clone()
    old = batch.old.clone()
    new[ignored], old[ignored] = rubbish, rubbish
    new.requires_grad_()
    value = term(new=new, old=old, target=batch.target)
    (gradient,) = torch.autograd.grad(value, new)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, wanted)


def test_old_and_new_that_are_swapped_are_noticed():
    batch = Batch()
    with pytest.raises(InputError, match="swap the two, or detach `old`"):
        FocalDistillation()(new=batch.old, old=batch.new, target=batch.target)
    with torch.no_grad():  # measuring, nothing is trained
        FocalDistillation()(new=batch.old, old=batch.new, target=batch.target)


@pytest.mark.parametrize(
    "row", [[1.0, 1.0, 0.0], [0.5, 0.2, 0.1], [1.5, -0.5, 0.0], [float("nan"), 0.0, 1.0]]
)
def test_soft_targets_are_distributions(row):
    new = torch.zeros(1, 3, requires_grad=True)
    with pytest.raises(InputError, match="Expected soft targets to be probabilities that sum to 1"):
        FocalDistillation()(new=new, old=torch.ones(1, 3), target=torch.tensor([row]))


@pytest.mark.parametrize(
    ("given", "way"),
    [
        (torch.nn.Linear(2, 2), "call it with the batch, and pass what it gives"),
        (type("Output", (), {"logits": None})(), "pass its `.logits`"),
        ([1.0], "pass a tensor"),
    ],
)
def test_what_is_no_tensor_is_told_what_to_do(given, way):
    with pytest.raises(InputError) as refusal:
        FocalDistillation()(new=torch.zeros(1, 2), old=given, target=torch.tensor([0]))
    assert str(refusal.value).endswith(f"; {way}.")


def test_classes_first_met_in_inference_mode_can_be_trained_with():
    batch = Batch()
    classes = SharedClasses.by_index(GROWN.new_to_old, old_count=GROWN.old_count)
    pull = FocalDistillation(classes=classes)
    inputs = {"old": batch.grown_old, "target": batch.target}
    with torch.inference_mode():
        pull(new=batch.new, **inputs)
    pull(new=batch.new, **inputs).backward()
    assert batch.new.grad is not None


def test_two_models_of_unlike_precision_keep_their_gradients_apart():
    torch.manual_seed(0)
    first = torch.randn(64, 100).half().requires_grad_()
    second = (torch.randn(64, 100) * 0.01).requires_grad_()
    CoDistillation()(first=first, second=second).backward()
    exact = second.detach().clone().requires_grad_()
    CoDistillation()(first=first.detach().float().requires_grad_(), second=exact).backward()
    assert first.grad.dtype == torch.float16
    torch.testing.assert_close(second.grad, exact.grad, rtol=1e-5, atol=1e-9)


def test_logits_may_be_changed_after_the_loss():
    batch = Batch()
    logits = batch.new * 1.0
    loss = FocalDistillation()(new=logits, old=batch.old, target=batch.target)
    expected = torch.autograd.grad(
        FocalDistillation()(new=batch.new, old=batch.old, target=batch.target), batch.new
    )
    logits.mul_(2)
    loss.backward()
    torch.testing.assert_close(batch.new.grad, expected[0])


@pytest.mark.parametrize("name", ["ldi", "entropy-top", "uniform-top", "fd-lm", "fd-kl"])
def test_other_sizes_compile_without_a_break(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compiler.reset()
        compiled = None
        for samples, classes in ((8, 3000), (8, 4000), (16, 5000)):
            batch = Batch()
            batch.new = torch.randn(samples, classes, requires_grad=True)
            batch.old = torch.randn(samples, classes)
            batch.target = torch.randint(classes, (samples,))
            term, inputs = CASES[name](batch)
            if compiled is None:
                compiled = torch.compile(term, fullgraph=True, dynamic=True, backend="aot_eager")
            torch.testing.assert_close(compiled(**inputs), term(**inputs), rtol=1e-4, atol=1e-6)
