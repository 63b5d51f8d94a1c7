"""One row for each loss: how it is called, how its inputs are drawn, and its plain definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from flipguard import losses
from tests.losses import transcription as plain
from tests.losses.transcription import Match

IGNORED = -100
FILTERS = ("old_right", "all", "new_wrong", "negative_flip")
# Margins that no difference of two grid points equals: there the slope would be ambiguous.
MARGINS = (0.0, 0.0, 0.3, 1.1)

# One number decides a case, so that no two cases of a run are alike.
randoms = st.builds(Random, st.integers(0, 2**32 - 1))


@dataclass(frozen=True)
class Case:
    """The tensors of one call, and its options; `classes` as a plain match."""

    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)

    def with_tensors(self, **tensors: Tensor) -> Case:
        return replace(self, tensors={**self.tensors, **tensors})

    def with_options(self, **options: Any) -> Case:
        return replace(self, options={**self.options, **options})

    def without(self, *names: str) -> Case:
        return Case(
            {name: value for name, value in self.tensors.items() if name not in names},
            {name: value for name, value in self.options.items() if name not in names},
        )

    def to(self, dtype: torch.dtype) -> Case:
        return replace(
            self,
            tensors={
                name: value.to(dtype) if value.is_floating_point() else value
                for name, value in self.tensors.items()
            },
        )

    def samples(self, loss: Loss, where: Any) -> Case:
        """Some of the samples."""
        return replace(
            self,
            tensors={
                name: value[where] if name in loss.per_sample else value
                for name, value in self.tensors.items()
            },
        )


def shared_classes(match: Match | None) -> losses.SharedClasses | None:
    if match is None:
        return None
    return losses.SharedClasses.by_index(list(match.of_new), old_count=match.old_count)


def real_options(case: Case) -> dict[str, Any]:
    options = dict(case.options)
    if "classes" in options:
        options["classes"] = shared_classes(options["classes"])
    return options


def make_plainly(cls: Callable[..., nn.Module], case: Case) -> nn.Module:
    return cls(**real_options(case))


def module_inputs(case: Case) -> dict[str, Tensor]:
    return dict(case.tensors)


@dataclass(frozen=True, kw_only=True)
class Loss:
    name: str
    module: str
    definition: Callable[..., Tensor]
    draw: Callable[..., Case]
    learns: tuple[str, ...] = ("new",)
    fixed: tuple[str, ...] = ()
    # Whether there is a target, whether it may be soft, and whether classes can be matched.
    target: bool = False
    soft: bool = False
    matches: bool = False
    # Every valid choice of the highest classes, where the loss makes one.
    choices: Callable[..., list[plain.Choices]] | None = None
    # Whether a sample's loss depends on that sample alone.
    alone: bool = True
    make: Callable[[Callable[..., nn.Module], Case], nn.Module] = make_plainly
    inputs: Callable[[Case], dict[str, Tensor]] = module_inputs

    @property
    def per_sample(self) -> tuple[str, ...]:
        """The tensors with a row for each sample."""
        names = (*self.learns, *self.fixed, "target")
        return tuple(name for name in names if name != "projection")

    def learners(self, case: Case) -> list[str]:
        return [name for name in self.learns if name in case.tensors]

    def __call__(self, case: Case, **options: Any) -> Tensor:
        """The function's value; a preset is for the module to spell out."""
        case = case.with_options(**options)
        if "preset" in case.options:
            return self.by_module(case)
        tensors = dict(case.tensors)
        if "projection" in tensors:
            tensors["new_features"] = tensors["new_features"] @ tensors.pop("projection").T
        return getattr(losses, self.name)(**tensors, **real_options(case))

    def by_module(self, case: Case, **options: Any) -> Tensor:
        case = case.with_options(**options)
        module = self.make(getattr(losses, self.module), case)
        return module(**self.inputs(case))

    def plainly(self, case: Case, **options: Any) -> Tensor:
        return self.definition(**case.tensors, **{**case.options, **options})

    def learning(self, case: Case) -> Case:
        """The same case, its learning tensors fresh leaves that want a gradient."""
        return case.with_tensors(
            **{
                name: case.tensors[name].detach().clone().requires_grad_()
                for name in self.learners(case)
            }
        )

    def value_and_gradients(
        self, case: Case, call: Callable[..., Tensor] | None = None, **options: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """The value, and the gradient of its sum for each learning tensor."""
        case = self.learning(case)
        value = (call or self)(case, **options)
        leaves = [case.tensors[name] for name in self.learners(case)]
        if not value.requires_grad:
            return value, [torch.zeros_like(leaf) for leaf in leaves]
        found = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        zeros = [torch.zeros_like(leaf) for leaf in leaves]
        pairs = zip(found, zeros, strict=True)
        return value.detach(), [zero if got is None else got for got, zero in pairs]


# --- drawing -----------------------------------------------------------------


def scores(random: Random, *shape: int, kind: str | None = None) -> Tensor:
    """Logits that often tie, or hardly ever."""
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    if (kind or random.choice(("grid", "fine"))) == "grid":
        return torch.randint(-6, 7, shape, generator=generator).double() * 0.5
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 3


def size(random: Random, most: int = 50) -> int:
    """Few classes mostly, many now and then."""
    return random.randint(1, random.choice((4, 8, 8, most)))


def draw_match(random: Random, new_count: int) -> Match:
    """Return a matching in which classes are added, removed and reordered."""
    old_count = random.randint(1, new_count + 2)
    shared = random.randint(1, min(old_count, new_count))
    of_new = [-1] * new_count
    places = random.sample(range(new_count), shared)
    for new, old in zip(places, random.sample(range(old_count), shared), strict=True):
        of_new[new] = old
    return Match(tuple(of_new), old_count)


def draw_target(
    random: Random, old: Tensor | None, match: Match, n: int, *, soft: bool, ignored: bool
) -> Tensor:
    """Often what old says; sometimes nothing."""
    count = len(match.of_new)
    labels = [random.randrange(count) for _ in range(n)]
    for i in range(n):
        said = match.in_new(plain.prediction(list(old[i].unbind()))) if old is not None else -1
        if said != -1 and random.random() < 0.5:
            labels[i] = said
    if not soft:
        return torch.tensor([IGNORED if ignored and random.random() < 0.2 else c for c in labels])
    target = torch.zeros(n, count, dtype=torch.float64)
    for i, label in enumerate(labels):
        target[i, label] += 0.75
        target[i, random.randrange(count)] += 0.25
        target[i] = 0.9 * target[i] + 0.1 / count
    return target


def of_logits(
    fixed: str | None,
    options: Callable[[Random, int], dict[str, Any]],
    *,
    target: bool,
    optional: bool = False,
    control: bool = False,
) -> Callable[..., Case]:
    """Draws the tensors and the options of a loss of logits."""

    def draw(
        random: Random,
        *,
        n: int | None = None,
        c: int | None = None,
        soft: bool | None = None,
        ignored: bool = True,
        matched: bool | None = None,
        kind: str | None = None,
        projected: bool | None = None,
        **given: Any,
    ) -> Case:
        n = n if n is not None else random.randint(1, 6)
        c = c if c is not None else size(random)
        chosen = {**options(random, c), "reduction": random.choice(("mean", "sum", "none"))}
        chosen.update(given)
        tensors = {"new": scores(random, n, c, kind=kind)}
        match = plain.everything(c)
        if fixed and (matched if matched is not None else random.random() < 0.4):
            match = draw_match(random, c)
            chosen["classes"] = match
        if fixed:
            tensors[fixed] = scores(random, n, match.old_count, kind=kind)
        if control and random.random() < 0.6:
            tensors["control"] = scores(random, n, c, kind=kind)
        wanted = target and not (optional and not chosen.get("focus") and random.random() < 0.4)
        if wanted:
            soft = soft if soft is not None else random.random() < 0.3
            tensors["target"] = draw_target(
                random, tensors.get(fixed or ""), match, n, soft=soft, ignored=ignored
            )
        return Case(tensors, chosen)

    return draw


def no_options(random: Random, c: int) -> dict[str, Any]:
    return {}


def focal_options(random: Random, c: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "base": random.choice((0.0, 0.5, 1.0)),
        "focus": random.choice((0.0, 1.0, 5.0)),
        "distance": random.choice(("logits", "kl")),
        "temperature": random.choice((0.5, 1.0, 4.0, 100.0)),
        "filter": random.choice(FILTERS),
    }
    if random.random() < 0.6:
        options["class_reduction"] = random.choice(("mean", "sum"))
    if random.random() < 0.6:
        options["direction"] = random.choice(("forward", "reverse"))
    if random.random() < 0.6:
        options["t_squared"] = random.choice((True, False))
    if random.random() < 0.3:
        options["preset"] = "paper"
    return options


def distillation_options(random: Random, c: int) -> dict[str, Any]:
    return {
        "temperature": random.choice((0.5, 1.0, 4.0, 100.0)),
        "direction": random.choice(("forward", "reverse")),
    }


def ldi_options(random: Random, c: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "k": random.choice((None, c + 3, random.randint(1, c), random.randint(1, c))),
        "p": random.choice((1.0, 1.5, 2.0, 3.0)),
        "rank_by": random.choice(("student", "reference", "both")),
        "margin": random.choice(MARGINS),
        "base": random.choice((0.0, 0.5, 1.0)),
        "focus": random.choice((0.0, 2.0)),
        "filter": random.choice(FILTERS),
    }
    if random.random() < 0.6:
        options["class_reduction"] = random.choice(("mean", "sum"))
    if random.random() < 0.3:
        options["preset"] = "paper"
    return options


def top_options(random: Random, c: int) -> dict[str, Any]:
    return {"k": random.choice((None, c + 3, random.randint(1, c), random.randint(1, c)))}


def floored_options(random: Random, c: int) -> dict[str, Any]:
    return {**top_options(random, c), "floor": random.choice((0.0, 1e-7, 1e-3))}


def muscle_options(random: Random, c: int) -> dict[str, Any]:
    return {"temperature": random.choice((0.5, 1.0, 4.0, 100.0))}


def draw_pair(
    random: Random,
    *,
    n: int | None = None,
    c: int | None = None,
    kind: str | None = None,
    codistilled: str = "skl",
    soft: bool | None = None,
    ignored: bool = True,
    matched: bool | None = None,
    projected: bool | None = None,
    **given: Any,
) -> Case:
    n = n if n is not None else random.randint(1, 6)
    c = c if c is not None else size(random)
    tensors = {name: scores(random, n, c, kind=kind) for name in ("first", "second")}
    reduction = random.choice(("mean", "sum", "none"))
    return Case(tensors, {"kind": codistilled, "reduction": reduction, **given})


def draw_pair_l1(random: Random, **given: Any) -> Case:
    return draw_pair(random, codistilled="l1", **given)


def draw_pair_ce(random: Random, **given: Any) -> Case:
    return draw_pair(random, codistilled="ce", **given)


def features(random: Random, n: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    return torch.randn(n, width, generator=generator, dtype=torch.float64)


def draw_widths(random: Random, projected: bool | None) -> tuple[int, int]:
    """How wide new's features are, and old's."""
    width = random.randint(1, 5)
    if projected if projected is not None else random.random() < 0.5:
        return width, width + random.choice((-1, 1)) if width > 1 else 2
    return width, width


def draw_backward_compatible(
    random: Random,
    *,
    n: int | None = None,
    c: int | None = None,
    soft: bool | None = None,
    ignored: bool = True,
    matched: bool | None = None,
    kind: str | None = None,
    projected: bool | None = None,
    **given: Any,
) -> Case:
    n = n if n is not None else random.randint(1, 6)
    c = c if c is not None else size(random, 12)
    width, old_width = draw_widths(random, projected)
    options: dict[str, Any] = {"reduction": random.choice(("mean", "sum", "none")), **given}
    match = plain.everything(c)
    if matched if matched is not None else random.random() < 0.4:
        match = options["classes"] = draw_match(random, c)
    tensors = {
        "new_features": features(random, n, width),
        "weight": features(random, match.old_count, old_width),
    }
    if width != old_width:
        tensors["projection"] = features(random, old_width, width)
    if random.random() < 0.7:
        tensors["bias"] = features(random, 1, match.old_count)[0]
    soft = soft if soft is not None else random.random() < 0.3
    tensors["target"] = draw_target(random, None, match, n, soft=soft, ignored=ignored)
    return Case(tensors, options)


def make_backward_compatible(cls: Callable[..., nn.Module], case: Case) -> nn.Module:
    weight = case.tensors["weight"]
    bias, projection = case.tensors.get("bias"), case.tensors.get("projection")
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    width = case.tensors["new_features"].shape[-1]
    with torch.no_grad():
        head.weight.copy_(weight)
        if bias is not None:
            head.bias.copy_(bias)
        module = cls(head=head, width=width, **real_options(case)).to(weight.dtype)
        if projection is not None:
            module.projection.weight.copy_(projection)
    return module


def draw_regression_alleviating(
    random: Random,
    *,
    n: int | None = None,
    c: int | None = None,
    soft: bool | None = None,
    ignored: bool = True,
    matched: bool | None = None,
    kind: str | None = None,
    projected: bool | None = None,
    **given: Any,
) -> Case:
    n = n if n is not None else random.randint(1, 6)
    c = c if c is not None else random.randint(1, 4)
    width, old_width = draw_widths(random, projected)
    options: dict[str, Any] = {
        "reduction": random.choice(("mean", "sum", "none")),
        "temperature": random.choice((0.05, 0.5, 1.0)),
        **given,
    }
    tensors = {
        "new_features": features(random, n, width),
        "old_features": features(random, n, old_width),
        "target": draw_target(random, None, plain.everything(c), n, soft=False, ignored=ignored),
    }
    if width != old_width:
        tensors["projection"] = features(random, old_width, width)
    return Case(tensors, options)


def make_regression_alleviating(cls: Callable[..., nn.Module], case: Case) -> nn.Module:
    projection = case.tensors.get("projection")
    width, old_width = (case.tensors[f"{side}_features"].shape[-1] for side in ("new", "old"))
    module = cls(width=width, old_width=old_width, **real_options(case))
    module.to(case.tensors["new_features"].dtype)
    if projection is not None:
        with torch.no_grad():
            module.projection.weight.copy_(projection)
    return module


def only_features(case: Case) -> dict[str, Tensor]:
    """What the modules that own a head or a projection are called with."""
    kept = ("new_features", "old_features", "target")
    return {name: value for name, value in case.tensors.items() if name in kept}


ROWS = {
    "naive_congruence": Loss(
        name="naive_congruence",
        module="NaiveCongruence",
        definition=plain.naive_congruence,
        draw=of_logits("old", no_options, target=True),
        fixed=("old",),
        target=True,
        soft=True,
        matches=True,
    ),
    "new_error": Loss(
        name="new_error",
        module="NewError",
        definition=plain.new_error,
        draw=of_logits("old", no_options, target=True),
        fixed=("old",),
        target=True,
        soft=True,
        matches=True,
    ),
    "strict_imitation": Loss(
        name="strict_imitation",
        module="StrictImitation",
        definition=plain.strict_imitation,
        draw=of_logits("old", no_options, target=True),
        fixed=("old",),
        target=True,
        soft=True,
        matches=True,
    ),
    "focal_distillation": Loss(
        name="focal_distillation",
        module="FocalDistillation",
        definition=plain.focal_distillation,
        draw=of_logits("old", focal_options, target=True),
        fixed=("old",),
        target=True,
        soft=True,
        matches=True,
    ),
    "knowledge_distillation": Loss(
        name="knowledge_distillation",
        module="KnowledgeDistillation",
        definition=plain.knowledge_distillation,
        draw=of_logits("reference", distillation_options, target=False),
        fixed=("reference",),
        matches=True,
    ),
    "logit_difference_inhibition": Loss(
        name="logit_difference_inhibition",
        module="LogitDifferenceInhibition",
        definition=plain.logit_difference_inhibition,
        draw=of_logits("reference", ldi_options, target=True, optional=True),
        fixed=("reference",),
        target=True,
        soft=True,
        matches=True,
        choices=plain.ldi_choices,
    ),
    "entropy_regularizer": Loss(
        name="entropy_regularizer",
        module="EntropyRegularizer",
        definition=plain.entropy_regularizer,
        draw=of_logits(None, top_options, target=False),
        choices=plain.probability_choices,
    ),
    "uniform_divergence": Loss(
        name="uniform_divergence",
        module="UniformDivergence",
        definition=plain.uniform_divergence,
        draw=of_logits(None, floored_options, target=False),
        choices=plain.probability_choices,
    ),
    "codistillation, symmetric": Loss(
        name="codistillation",
        module="CoDistillation",
        definition=plain.codistillation,
        draw=draw_pair,
        learns=("first", "second"),
    ),
    "codistillation, L1": Loss(
        name="codistillation",
        module="CoDistillation",
        definition=plain.codistillation,
        draw=draw_pair_l1,
        learns=("first", "second"),
    ),
    "codistillation, cross-entropy": Loss(
        name="codistillation",
        module="CoDistillation",
        definition=plain.codistillation,
        draw=draw_pair_ce,
        learns=("first",),
        fixed=("second",),
    ),
    "muscle": Loss(
        name="muscle",
        module="Muscle",
        definition=plain.muscle,
        draw=of_logits("old", muscle_options, target=True, control=True),
        fixed=("old", "control"),
        target=True,
        soft=True,
        matches=True,
    ),
    "backward_compatible": Loss(
        name="backward_compatible",
        module="BackwardCompatible",
        definition=plain.backward_compatible,
        draw=draw_backward_compatible,
        learns=("new_features", "projection"),
        target=True,
        soft=True,
        matches=True,
        make=make_backward_compatible,
        inputs=only_features,
    ),
    "regression_alleviating": Loss(
        name="regression_alleviating",
        module="RegressionAlleviating",
        definition=plain.regression_alleviating,
        draw=draw_regression_alleviating,
        learns=("new_features", "projection"),
        fixed=("old_features",),
        target=True,
        alone=False,
        make=make_regression_alleviating,
        inputs=only_features,
    ),
}
