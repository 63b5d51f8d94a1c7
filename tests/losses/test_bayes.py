"""Training on the Bayesian update: the cross-entropy with its decisions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flipguard import InputError
from flipguard.losses import (
    BayesianImitation,
    BayesianUpdate,
    bayesian_imitation,
    bayesian_update,
)


def a_batch(samples: int = 200, classes: int = 7):
    made = torch.Generator().manual_seed(1)
    new = torch.randn(samples, classes, generator=made, dtype=torch.float64)
    old = torch.randn(samples, classes, generator=made, dtype=torch.float64)
    old_confusion, new_confusion = (
        torch.softmax(3 * torch.eye(classes) + torch.randn(classes, classes, generator=made), -1)
        for _ in range(2)
    )
    return new.requires_grad_(), old, old_confusion, new_confusion


def test_it_is_cross_entropy_with_the_decision():
    new, old, old_confusion, new_confusion = a_batch()
    decision = BayesianUpdate(
        old_confusion=old_confusion, new_confusion=new_confusion, cost_ratio=1.5
    )(old=old, new=new)
    # Both answers are given in this batch, and old's also where new disagrees.
    assert (decision.label != old.argmax(-1)).any()
    assert ((decision.label == old.argmax(-1)) & (new.argmax(-1) != old.argmax(-1))).any()
    for reduction in ("mean", "sum", "none"):
        term = BayesianImitation(
            old_confusion=old_confusion,
            new_confusion=new_confusion,
            cost_ratio=1.5,
            reduction=reduction,
        )
        value = term(new=new, old=old)
        expected = F.cross_entropy(new, decision.label, reduction=reduction)
        torch.testing.assert_close(value, expected)
        (gradient,) = torch.autograd.grad(value.sum(), new)
        (wanted,) = torch.autograd.grad(expected.sum(), new)
        torch.testing.assert_close(gradient, wanted)


def test_the_decision_gets_no_gradient():
    new, old, old_confusion, new_confusion = a_batch(samples=5)
    old.requires_grad_()
    bayesian_imitation(
        new=new, old=old, old_confusion=old_confusion, new_confusion=new_confusion
    ).backward()
    assert old.grad is None
    assert new.grad is not None


def test_a_costly_flip_means_imitating_old():
    new, old, old_confusion, new_confusion = a_batch()
    term = BayesianImitation(
        old_confusion=old_confusion, new_confusion=new_confusion, cost_ratio=1e9
    )
    torch.testing.assert_close(term(new=new, old=old), F.cross_entropy(new, old.argmax(-1)))


def test_confusions_travel_with_a_checkpoint():
    _, _, old_confusion, new_confusion = a_batch()
    term = BayesianImitation(old_confusion=old_confusion, new_confusion=new_confusion)
    assert set(term.state_dict()) == {"old_confusion", "new_confusion"}
    assert not list(term.parameters())


def test_one_table_for_both_stays_two():
    """The same tensor may be given twice; estimating one again must not change the other."""
    confusion = torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    term = BayesianImitation(old_confusion=confusion, new_confusion=confusion)
    term.new_confusion.fill_(0.5)
    assert torch.equal(term.old_confusion, confusion)
    assert confusion[0, 0] == 0.8


def test_classes_that_were_never_said_leave_a_posterior():
    never = torch.eye(3)
    logits = torch.tensor([[1.0, 0.0, 0.0]])
    decision = bayesian_update(
        old=logits, new=logits.roll(1, -1), old_confusion=never, new_confusion=never
    )
    assert torch.isfinite(decision.posterior).all()


@pytest.mark.parametrize("table", [torch.ones(2, 2), torch.eye(2), torch.full((2, 2), -1.0)])
def test_counts_are_no_confusion(table):
    with pytest.raises(InputError, match="to be positive and to sum to 1"):
        BayesianUpdate(old_confusion=table, new_confusion=torch.full((2, 2), 0.5))


def test_half_precision_decides_as_single_precision():
    new, old, old_confusion, new_confusion = a_batch()
    update = BayesianUpdate(old_confusion=old_confusion, new_confusion=new_confusion)
    expected = update(old=old, new=new)
    halved = update.half()(old=old, new=new)
    torch.testing.assert_close(halved.posterior, expected.posterior, rtol=0.02, atol=1e-3)
