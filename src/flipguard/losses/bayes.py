"""The Bayesian update with a cost ratio (BU-CR; Träuble et al., 2021).

It combines both models' predictions with their confusion matrices, and decides for each sample
whether to keep the old prediction. ELODI's authors train the new model on these decisions.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from flipguard.errors import InputError, listed
from flipguard.losses.base import (
    IGNORED,
    REDUCTIONS,
    Labels,
    Logits,
    Loss,
    LossCard,
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
    """The class that is chosen per sample, and the probability of each class."""

    label: Labels
    posterior: Logits  # probabilities [..., C]


def estimate_confusion(
    *, predicted: Labels, target: Labels, classes: int, smoothing: float = 1.0
) -> Tensor:
    """Return ``P(predicted | target)`` of held-out samples: row = target, column = predicted.

    `smoothing` is added to every count, so that pairs that never occurred are unlikely, but not
    impossible.

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
    # Counted as integers, because a float32 cannot count above 16.8 million.
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
    """Keep the old prediction unless the change pays. See :class:`BayesianUpdate`."""
    positive("cost_ratio", cost_ratio)
    check_scores("new", new)
    check_same_shape("old", old, "new", new)
    _check_tables(old_confusion, new_confusion, prior, classes=new.shape[-1])
    old_says, new_says = old.argmax(-1), new.argmax(-1)
    # Columns are predictions, so a row of the transpose has the likelihood of every class.
    evidence = _log(old_confusion).T[old_says] + _log(new_confusion).T[new_says]
    if prior is not None:
        evidence = evidence + _log(prior)
    posterior = torch.softmax(evidence, -1)
    kept = posterior.gather(-1, old_says.unsqueeze(-1)).squeeze(-1)
    likely, best = posterior.max(-1)
    label = torch.where(likely > cost_ratio * kept, best, old_says)
    return BayesianDecision(label=label, posterior=posterior)


def _log(probabilities: Tensor) -> Tensor:
    # A probability of 0 becomes very small, because minus infinity could rule out every class.
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
    """Return the cross-entropy with the Bayesian decision. See :class:`BayesianImitation`."""
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
    """Raise an error for tables of a wrong shape or with wrong values."""
    classes = old_confusion.shape[-1] if isinstance(old_confusion, Tensor) else 0
    _check_tables(old_confusion, new_confusion, prior, classes=classes)
    for name, table in (("old_confusion", old_confusion), ("new_confusion", new_confusion)):
        if not bool((table > 0).all() & ((table.sum(-1) - 1).abs() < 1e-3).all()):
            raise InputError(
                f"Expected the rows of `{name}` to be positive and to sum to 1, but got others; "
                "`estimate_confusion` counts and smooths them so."
            )


class _OfVotes(LossTerm):
    """The buffers of both modules: the models' confusions, the prior and the cost ratio."""

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
        # Copies, so that they may be estimated again without changing the caller's tensors.
        self.register_buffer("old_confusion", old_confusion.detach().clone())
        self.register_buffer("new_confusion", new_confusion.detach().clone())
        self.register_buffer("prior", None if prior is None else prior.detach().clone())
        self.cost_ratio = cost_ratio


class BayesianUpdate(_OfVotes):
    """The Bayesian update with a cost ratio (BU-CR): change a prediction only if it pays.

    Both models' predictions and their confusion on held-out samples give a posterior::

        P(y | predictions)  ~  prior(y) * P(old prediction | y) * P(new prediction | y)

    The old prediction is kept, unless the most probable class is more than `cost_ratio` times as
    probable. The ratio is the cost of a negative flip over the gain from a positive one. Both
    models run at inference. The decision is not differentiable, and only the confusion is learned.

    Args:
        old_confusion: ``P(old says column | target is row)``, from :func:`estimate_confusion`.
        new_confusion: the same for the new model.
        prior: the frequencies of the classes; uniform if None.
        cost_ratio: the cost of a negative flip, relative to the gain from a positive one.

    >>> import torch
    >>> old_confusion = torch.tensor([[0.6, 0.4], [0.4, 0.6]])
    >>> new_confusion = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    >>> update = BayesianUpdate(old_confusion=old_confusion, new_confusion=new_confusion)
    >>> update(old=torch.tensor([[1.0, 0.0]]), new=torch.tensor([[0.0, 1.0]]))
    BayesianDecision(label=tensor([1]), posterior=tensor([[0.1429, 0.8571]]))
    """

    card: ClassVar[LossCard] = LossCard(
        section="The Bayesian update",
        formula="P(y | votes) ~ prior(y) P(old's vote | y) P(new's vote | y);  keep old's vote "
        "unless max_y P(y | votes) > cost_ratio P(old's vote | votes)",
        use="Both models can run at inference, and no training is possible: it decides per sample.",
        paper="Träuble et al., 2021 (BU-CR)",
        pitfalls="`estimate_confusion(predicted=labels, target=labels, classes=C)` counts the "
        "confusion, with one row per true class. Use held-out samples: on training samples both "
        "models are nearly always right. The posterior assumes that the votes are independent "
        "given the class, which is not true for models trained on the same data. With few "
        "held-out samples the smoothing makes it uncertain, and the old prediction is kept.",
    )

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
        """Return the decisions for a batch."""
        return bayesian_update(
            old=old,
            new=new,
            old_confusion=self.old_confusion,
            new_confusion=self.new_confusion,
            prior=self.prior,
            cost_ratio=self.cost_ratio,
        )


class BayesianImitation(_OfVotes):
    """Training on the decisions of the Bayesian update (BU-CR, as ELODI's authors use it).

    The term is the mean over the batch of ``-log p_new(z)``, where ``z`` is the decision of
    :class:`BayesianUpdate` for the sample. It does not use the true class. The new model's
    confusion changes during training: estimate it again on held-out samples, for instance after
    every epoch, and copy it into ``term.new_confusion``.

    Args:
        old_confusion: ``P(old says column | target is row)``, from :func:`estimate_confusion`.
        new_confusion: the same for the new model.
        prior: the frequencies of the classes; uniform if None.
        cost_ratio: the cost of a negative flip, relative to the gain from a positive one.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> confusion = torch.tensor([[0.8, 0.2], [0.2, 0.8]])
    >>> pull = BayesianImitation(old_confusion=confusion, new_confusion=confusion)
    >>> new = torch.tensor([[0.0, 1.0]], requires_grad=True)
    >>> pull(new=new, old=torch.tensor([[1.0, 0.0]]))  # a tie, so the old prediction stays
    tensor(1.3133, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="The Bayesian update",
        formula="1/N sum_i -log p_new(z_i | x_i),  z_i the decision of the Bayesian update from "
        "both models' votes on x_i",
        use="To compare with ELODI's table 1, in which BU-CR trains the new model towards the "
        "decisions of the update.",
        paper="ELODI, table 1 and footnote 2; after Träuble et al., 2021",
        pitfalls="The decisions replace the targets, so the true classes are not used: errors "
        "that both models make are learned as well. ELODI finds no gain (NFR 4.56 % against 4.30 "
        "% untreated). The confusion of the new model changes as it learns: estimate it again.",
    )

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
        """Return the term for a batch."""
        return bayesian_imitation(
            new=new,
            old=old,
            old_confusion=self.old_confusion,
            new_confusion=self.new_confusion,
            prior=self.prior,
            cost_ratio=self.cost_ratio,
            reduction=self.reduction,
        )
