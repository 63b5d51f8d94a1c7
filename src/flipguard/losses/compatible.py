"""Compatible training: new features that work in place of the old ones (BCT, RACT)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.losses.base import (
    IGNORED,
    REDUCTIONS,
    Features,
    Labels,
    Loss,
    LossCard,
    LossTerm,
    Reduction,
    Target,
    averaged,
    check_same_samples,
    check_scores,
    loss_precision,
    one_of,
    positive,
    reduce_loss,
)
from flipguard.losses.classes import SharedClasses
from flipguard.losses.divergences import negative_log_likelihood
from flipguard.losses.targets import HardTarget, read_hard_target, read_target

# Shorter features have no direction, and a gradient that is too large for half precision.
SHORTEST = 1e-4


def backward_compatible(
    *,
    new_features: Features,
    weight: Tensor,  # float [C_old, D_old]: the old model's classification head
    target: Target,
    bias: Tensor | None = None,  # float [C_old]
    projection: Tensor | None = None,  # float [D_old, D_new]
    classes: SharedClasses | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Loss:
    """Return the loss of the old head on new features. See :class:`BackwardCompatible`."""
    one_of("reduction", reduction, REDUCTIONS)
    check_scores("new_features", new_features)
    count = weight.shape[0] if classes is None else classes.old_count
    if (
        weight.dim() != 2
        or weight.shape[0] != count
        or (bias is not None and bias.shape != (count,))
    ):
        raise InputError(
            f"Expected old's head to have a weight [{count}, width] and a bias [{count}], one row "
            f"per old class, but got {list(weight.shape)} and "
            f"{None if bias is None else list(bias.shape)}; pass those of its last linear layer."
        )
    # The old head was trained in full precision, and the loss compares its logits.
    with torch.autocast(new_features.device.type, enabled=False):
        features = _projected(new_features, projection, width=weight.shape[-1])
        head = weight.detach().to(features.dtype)
        logits = F.linear(features, head, None if bias is None else bias.detach().to(head.dtype))
    # Targets are classes of the new model. The old model may lack some of them.
    like = logits
    if classes is not None:
        like = logits.new_empty(()).expand(*logits.shape[:-1], classes.new_count)
    aim = read_target(target, new=like, ignore_index=ignore_index)
    if isinstance(aim, HardTarget):
        known = aim.known_mass(classes).to(logits.dtype)
        place = aim.index()
        if classes is not None:
            place = classes.on(place.device).new_to_old[place].clamp(min=0)
        sloped = negative_log_likelihood(logits, place)
        return reduce_loss((logits,), sloped, weight=known, count=aim.count(), reduction=reduction)
    log_p = torch.log_softmax(logits, -1)
    mixture = aim.mixture
    if classes is not None:
        positions = classes.on(mixture.device)
        mixture = mixture.index_select(-1, positions.shared_new)
        log_p = log_p.index_select(-1, positions.shared_old)
    return averaged((mixture * log_p).sum(-1).neg(), reduction=reduction, count=aim.count())


def regression_alleviating(
    *,
    new_features: Features,
    old_features: Features,
    target: Labels,
    temperature: float = 0.05,
    projection: Tensor | None = None,  # float [D_old, D_new]
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Loss:
    """Pull new features to old features. See :class:`RegressionAlleviating`."""
    positive("temperature", temperature)
    one_of("reduction", reduction, REDUCTIONS)
    check_scores("new_features", new_features)
    check_same_samples("old_features", old_features, "new_features", new_features)
    if new_features.dim() != 2:
        raise InputError(
            f"Expected `new_features` to have the shape [samples, width], but got "
            f"{list(new_features.shape)}; flatten them."
        )
    aim = read_hard_target(target, like=new_features, ignore_index=ignore_index)
    # Similarities are divided by a small temperature, for which half precision is too coarse.
    with torch.autocast(new_features.device.type, enabled=False):
        features = _projected(new_features, projection, width=old_features.shape[-1])
        # An ignored sample may have any value, including nan.
        ignored = ~aim.valid.unsqueeze(-1)
        features = features.masked_fill(ignored, 0)
        old_features = old_features.masked_fill(ignored, 0)
        new = F.normalize(features, dim=-1, eps=SHORTEST)
        old = F.normalize(loss_precision(old_features.detach()), dim=-1, eps=SHORTEST)
        scaled = new / temperature
        own = (scaled * old).sum(-1)
        to_old, to_new = scaled @ old.T, scaled @ new.T
    same = (aim.labels.unsqueeze(0) == aim.labels.unsqueeze(1)) | ~aim.valid.unsqueeze(0)
    lowest = torch.finfo(own.dtype).min
    rivals = torch.logaddexp(
        to_old.masked_fill_(same, lowest).logsumexp(-1),
        to_new.masked_fill_(same, lowest).logsumexp(-1),
    )
    value = (torch.logaddexp(own, rivals) - own) * aim.valid
    return averaged(value, reduction=reduction, count=aim.count())


def _projected(features: Features, projection: Tensor | None, *, width: int) -> Tensor:
    """Return new features with the old width, in the precision of losses."""
    wide = loss_precision(features)
    if projection is not None and projection.shape == (width, wide.shape[-1]):
        return F.linear(wide, projection.to(wide.dtype))
    if projection is not None or wide.shape[-1] != width:
        raise InputError(
            f"Expected `new_features` to be as wide as old's, {width}, or a projection "
            f"[{width}, {wide.shape[-1]}], but got the width {wide.shape[-1]} and "
            f"{'no projection' if projection is None else list(projection.shape)}; "
            "say `width=` when the module is made, and it learns one."
        )
    return wide


def _projection(width: int | None, old_width: int | None) -> nn.Linear | None:
    """Return a linear map from new to old features, or None if their widths are equal."""
    if width is None or width == old_width:
        return None
    if old_width is None:
        raise InputError(
            "Expected `old_width` where `width` is given, but got none; both say what to project."
        )
    return nn.Linear(width, old_width, bias=False)


class BackwardCompatible(LossTerm):
    """Backward-compatible training (BCT, Shen et al. 2020): the old head works on new features.

    The term is the cross-entropy of the old model's frozen classification head on the new model's
    features, which are projected to the old width if the widths differ. The head is not a parameter
    and not part of any state dict. The projection is learned: give ``term.parameters()`` to the
    optimizer.

    Args:
        head: the old model's last linear layer.
        width: the width of new features, if it differs from the old width.
        classes: the matching of classes, if the old and new model have different ones.
        ignore_index: the target value that marks samples without a target.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> head = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.eye_(head.weight), torch.nn.init.zeros_(head.bias)
    >>> features = torch.zeros(3, 2, requires_grad=True)
    >>> BackwardCompatible(head)(new_features=features, target=torch.tensor([0, 1, 1]))  # log(2)
    tensor(0.6931, grad_fn=<...>)
    """

    card: ClassVar[LossCard] = LossCard(
        section="On features",
        formula="1/N sum_i -log softmax(old_head(projection(new_features(x_i))))_{y_i}",
        use="The new features must work with the old classifier or index, so that stored "
        "embeddings need not be computed again.",
        paper="BCT, Shen et al., 2020; ELODI, table 1",
        pitfalls="`head` is the last `nn.Linear` of the old model. Give `width` if the new "
        "features have another width. PCT and ELODI find that it does not lower the NFR (6.44 → "
        "6.39 %). The projection is learned, so add its parameters to the optimizer.",
    )

    def __init__(
        self,
        head: nn.Linear,
        *,
        width: int | None = None,
        classes: SharedClasses | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        one_of("reduction", reduction, REDUCTIONS)
        if not isinstance(head, nn.Linear):
            raise InputError(
                f"Expected `head` to be old's last linear layer, but got {type(head).__name__}."
            )
        self.weight: Tensor
        self.bias: Tensor | None
        bias = None if head.bias is None else head.bias.detach().clone()
        self.register_buffer("weight", head.weight.detach().clone(), persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self.projection = _projection(width, head.in_features)
        self.classes = classes
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, *, new_features: Features, target: Target) -> Loss:
        """Return the term for a batch."""
        return backward_compatible(
            new_features=new_features,
            weight=self.weight,
            bias=self.bias,
            target=target,
            projection=None if self.projection is None else self.projection.weight,
            classes=self.classes,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class RegressionAlleviating(LossTerm):
    """Regression-alleviating training (RACT, Zhang et al. 2022): new features near old ones.

    A sample's new feature is pulled to its old feature, and away from both the old *and the new*
    features of samples of other classes in the batch. With ``n`` and ``o`` the normalised
    features and ``t`` the temperature, the term is the mean over the samples i of::

        -log e^(n_i o_i / t) / (e^(n_i o_i / t) + sum_k e^(n_i o_k / t) + sum_k e^(n_i n_k / t))

    with k over the samples of other classes. A projection is needed if the widths differ, and is
    learned: give ``term.parameters()`` to the optimizer.

    Args:
        temperature: a low one puts the weight on the most similar features of other classes.
        width: the width of new features, if it differs from the old width.
        old_width: the width of old features; needed with `width`.
        ignore_index: the target value that marks samples without a target. They are left out
            everywhere.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one value per sample.

    >>> import torch
    >>> features = torch.eye(2)
    >>> pull = RegressionAlleviating(temperature=1.0)
    >>> pull(new_features=features, old_features=features, target=torch.tensor([0, 1]))
    tensor(0.5514)
    """

    card: ClassVar[LossCard] = LossCard(
        section="On features",
        formula="1/N sum_i -log e^{n_i o_i/t} / (e^{n_i o_i/t} + sum_k e^{n_i o_k/t} + sum_k "
        "e^{n_i n_k/t}),  k over the samples of other classes, features of length 1",
        use="Like BCT, for retrieval while the index is refilled: a new feature must be close to "
        "the old feature of the same sample, and far from new features of other classes.",
        paper="RACT, Zhang et al., 2022 (t = 0.05); ELODI, table 1",
        pitfalls="It compares all pairs of a batch, so its memory grows with the square of the "
        "batch size, and a small batch has few samples of other classes. It is not defined for "
        "soft targets. With several processes, each compares only its own batch.",
    )

    def __init__(
        self,
        temperature: float = 0.05,
        *,
        width: int | None = None,
        old_width: int | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        positive("temperature", temperature)
        one_of("reduction", reduction, REDUCTIONS)
        self.temperature = temperature
        self.projection = _projection(width, old_width)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, *, new_features: Features, old_features: Features, target: Labels) -> Loss:
        """Return the term for a batch."""
        return regression_alleviating(
            new_features=new_features,
            old_features=old_features,
            target=target,
            projection=None if self.projection is None else self.projection.weight,
            temperature=self.temperature,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )
