"""The Bayesian update with a cost ratio (BU-CR; Träuble et al., 2021): when to believe new.

From what both models say, and how often each confuses which classes, it decides a sample at a time
whether the update may change the answer. ELODI's authors train the new model towards that answer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flipguard.errors import InputError, listed
from flipguard.losses.base import (
    IGNORED,
    REDUCTIONS,
    Labels,
    Logits,
    Loss,
    LossTerm,
    PerSample,
    Reduction,
    check_same_shape,
    check_scores,
    loss_precision,
    one_of,
    positive,
    reduce_loss,
)
from flipguard.losses.divergences import negative_log_likelihood
from flipguard.losses.targets import read_hard_target


class BayesianDecision(NamedTuple):
    """What to answer, and how likely each class is."""

    label: Labels
    posterior: Logits  # probabilities [..., C]


def estimate_confusion(
    *, predicted: Labels, target: Labels, classes: int, smoothing: float = 1.0
) -> Tensor:
    """``P(predicted | target)``, counted on held-out samples: row = target, column = predicted.

    `smoothing` is added to every count, so that what was not seen is unlikely, not impossible.

    >>> import torch
    >>> predicted, target = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1])
    >>> estimate_confusion(predicted=predicted, target=target, classes=2)
    tensor([[0.6000, 0.4000],
            [0.3333, 0.6667]])
    """
    positive("smoothing", smoothing)
    if not isinstance(classes, int) or classes < 1:
        raise InputError(
            f"Expected `classes` to be the number of classes, at least 1, but got {classes!r}."
        )
    if predicted.is_floating_point():
        raise InputError(
            "Expected `predicted` to be class indices, but got scores; take their argmax first."
        )
    aim = read_hard_target(target, like=predicted.unsqueeze(-1), ignore_index=IGNORED)
    for name, labels in (("predicted", predicted), ("target", aim.index())):
        wrong = aim.valid & ((labels < 0) | (labels >= classes))
        if bool(wrong.any()):
            unknown = listed(sorted(set(labels[wrong].tolist())))
            raise InputError(
                f"Expected `{name}` to hold classes from 0 to {classes - 1}, but got {unknown}; "
                "say how many there are with `classes`."
            )
    # Counted as integers: a float32 stops growing at sixteen million.
    place = (aim.index() * classes + predicted.long())[aim.valid]
    counts = torch.bincount(place, minlength=classes**2).view(classes, classes) + smoothing
    return counts / counts.sum(-1, keepdim=True)


def bayesian_update(
    *,
    old: Logits,
    new: Logits,
    old_confusion: Tensor,  # float [C, C]: P(old says column | target is row)
    new_confusion: Tensor,  # float [C, C]
    prior: PerSample | None = None,  # float [C]; uniform if None
    cost_ratio: float = 2.5,
) -> BayesianDecision:
    """Old's answer, unless another is `cost_ratio` times as likely. See :class:`BayesianUpdate`."""
    positive("cost_ratio", cost_ratio)
    check_scores("new", new)
    check_same_shape("old", old, "new", new)
    _check_tables(old_confusion, new_confusion, prior, classes=new.shape[-1])
    old_says, new_says = old.argmax(-1), new.argmax(-1)
    # Columns are what was said, so a row of the transpose is the likelihood of every class.
    evidence = _log(old_confusion).T[old_says] + _log(new_confusion).T[new_says]
    if prior is not None:
        evidence = evidence + _log(prior)
    posterior = torch.softmax(evidence, -1)
    kept = posterior.gather(-1, old_says.unsqueeze(-1)).squeeze(-1)
    likely, best = posterior.max(-1)
    label = torch.where(likely > cost_ratio * kept, best, old_says)
    return BayesianDecision(label=label, posterior=posterior)


def _log(probabilities: Tensor) -> Tensor:
    # What never happened is very unlikely: minus infinity would leave no class possible.
    wide = loss_precision(probabilities.detach())
    return wide.clamp(min=torch.finfo(wide.dtype).tiny).log()


def bayesian_imitation(
    *,
    new: Logits,
    old: Logits,
    old_confusion: Tensor,  # float [C, C]: P(old says column | target is row)
    new_confusion: Tensor,  # float [C, C]
    prior: PerSample | None = None,  # float [C]; uniform if None
    cost_ratio: float = 2.5,
    reduction: Reduction = "mean",
) -> Loss:
    """Cross-entropy of new with the Bayesian update's answer. See :class:`BayesianImitation`."""
    one_of("reduction", reduction, REDUCTIONS)
    decision = bayesian_update(
        old=old.detach(),
        new=new.detach(),
        old_confusion=old_confusion,
        new_confusion=new_confusion,
        prior=prior,
        cost_ratio=cost_ratio,
    )
    return reduce_loss((new,), negative_log_likelihood(new, decision.label), reduction=reduction)


def _check_tables(
    old_confusion: Tensor, new_confusion: Tensor, prior: Tensor | None, *, classes: int
) -> None:
    for name, table in (("old_confusion", old_confusion), ("new_confusion", new_confusion)):
        if not isinstance(table, Tensor) or table.shape != (classes, classes):
            shape = list(table.shape) if isinstance(table, Tensor) else type(table).__name__
            raise InputError(
                f"Expected `{name}` to be a tensor of the shape [{classes}, {classes}], but got "
                f"{shape}; `estimate_confusion` makes it, with a row for each class."
            )
    if prior is not None and prior.shape != (classes,):
        raise InputError(
            f"Expected `prior` to have the shape [{classes}], but got {list(prior.shape)}; give a "
            "probability for each class."
        )


def _check_confusions(old_confusion: Tensor, new_confusion: Tensor, prior: Tensor | None) -> None:
    """The same when a module is made, where their values may be looked at too."""
    classes = old_confusion.shape[-1] if isinstance(old_confusion, Tensor) else 0
    _check_tables(old_confusion, new_confusion, prior, classes=classes)
    for name, table in (("old_confusion", old_confusion), ("new_confusion", new_confusion)):
        if not bool((table > 0).all() & ((table.sum(-1) - 1).abs() < 1e-3).all()):
            raise InputError(
                f"Expected the rows of `{name}` to be positive and to sum to 1, but got others; "
                "`estimate_confusion` counts and smooths them so."
            )


class _OfVotes(LossTerm):
    """What both modules hold: how each model confuses classes, and what a flip costs."""

    old_confusion: Tensor
    new_confusion: Tensor
    prior: Tensor | None
    cost_ratio: float

    def _hold(
        self,
        *,
        old_confusion: Tensor,
        new_confusion: Tensor,
        prior: Tensor | None,
        cost_ratio: float,
    ) -> None:
        positive("cost_ratio", cost_ratio)
        _check_confusions(old_confusion, new_confusion, prior)
        # Copies: each may be estimated again, and the caller's stay as they are.
        self.register_buffer("old_confusion", old_confusion.detach().clone())
        self.register_buffer("new_confusion", new_confusion.detach().clone())
        self.register_buffer("prior", None if prior is None else prior.detach().clone())
        self.cost_ratio = cost_ratio


class BayesianUpdate(_OfVotes):
    """The Bayesian update with a cost ratio (BU-CR): change an answer only if it pays.

    From the votes of both models and their confusion on held-out samples follows a posterior::

        P(y | votes)  ~  prior(y) * P(old's vote | y) * P(new's vote | y)

    The answer is old's vote, unless the most likely class is more than `cost_ratio` times as
    likely: the cost of a negative flip over the gain of a positive one. Both models run at
    inference. Nothing is differentiable, and nothing is learned but the confusion.

    Args:
        old_confusion: ``P(old says column | target is row)``, from :func:`estimate_confusion`.
        new_confusion: the same for new.
        prior: how frequent the classes are; uniform if None.
        cost_ratio: how much worse a negative flip is than a positive one is good.

    >>> import torch
    >>> old_confusion = torch.tensor([[0.6, 0.4], [0.4, 0.6]])
    >>> new_confusion = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    >>> update = BayesianUpdate(old_confusion=old_confusion, new_confusion=new_confusion)
    >>> update(old=torch.tensor([[1.0, 0.0]]), new=torch.tensor([[0.0, 1.0]]))
    BayesianDecision(label=tensor([1]), posterior=tensor([[0.1429, 0.8571]]))
    """

    def __init__(
        self,
        *,
        old_confusion: Tensor,
        new_confusion: Tensor,
        prior: Tensor | None = None,
        cost_ratio: float = 2.5,
    ) -> None:
        super().__init__()
        self._hold(
            old_confusion=old_confusion,
            new_confusion=new_confusion,
            prior=prior,
            cost_ratio=cost_ratio,
        )

    def forward(self, *, old: Logits, new: Logits) -> BayesianDecision:
        """The decision for a batch."""
        return bayesian_update(
            old=old,
            new=new,
            old_confusion=self.old_confusion,
            new_confusion=self.new_confusion,
            prior=self.prior,
            cost_ratio=self.cost_ratio,
        )


class BayesianImitation(_OfVotes):
    """Training towards the Bayesian update (BU-CR as ELODI's authors have it).

    The term is the mean over the batch of ``-log p_new(z)``, where ``z`` is what
    :class:`BayesianUpdate` decides from both models' votes on the sample. The true class is not
    asked for. New's confusion changes while it trains: estimate it again on held-out samples now
    and then, and copy it into ``term.new_confusion``.

    Args:
        old_confusion: ``P(old says column | target is row)``, from :func:`estimate_confusion`.
        new_confusion: the same for new.
        prior: how frequent the classes are; uniform if None.
        cost_ratio: how much worse a negative flip is than a positive one is good.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> confusion = torch.tensor([[0.8, 0.2], [0.2, 0.8]])
    >>> pull = BayesianImitation(old_confusion=confusion, new_confusion=confusion)
    >>> new = torch.tensor([[0.0, 1.0]], requires_grad=True)
    >>> pull(new=new, old=torch.tensor([[1.0, 0.0]]))  # as likely as not: old's answer stays
    tensor(1.3133, grad_fn=<...>)
    """

    def __init__(
        self,
        *,
        old_confusion: Tensor,
        new_confusion: Tensor,
        prior: Tensor | None = None,
        cost_ratio: float = 2.5,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self._hold(
            old_confusion=old_confusion,
            new_confusion=new_confusion,
            prior=prior,
            cost_ratio=cost_ratio,
        )
        one_of("reduction", reduction, REDUCTIONS)
        self.reduction = reduction

    def forward(self, *, new: Logits, old: Logits) -> Loss:
        """The term for a batch."""
        return bayesian_imitation(
            new=new,
            old=old,
            old_confusion=self.old_confusion,
            new_confusion=self.new_confusion,
            prior=self.prior,
            cost_ratio=self.cost_ratio,
            reduction=self.reduction,
        )
