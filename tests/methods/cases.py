"""Each method with options, and the equation that its objective must equal.

`printed` is the paper's equation, which `preset="paper"` gives. `default` is the method without
options; where it departs from the paper, the departure is an argument of the equation. `variant`
has other options, classes or old models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.methods import METHODS, Objective
from tests.losses import transcription as plain
from tests.methods import equations
from tests.methods import other_equations as others
from tests.methods.equations import Said, plus
from tests.methods.scenes import CLASSES, PLACES, STEPS, Features, Scene


@dataclass(frozen=True, kw_only=True)
class Call:
    """What an equation may need besides the outputs of the models."""

    said: Said
    at: Scene
    objective: Objective
    stale: Mapping[str, list[plain.Row]]


Equation = Callable[[Call], Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method with options, and the equation that its objective must equal."""

    name: str
    kind: str  # "printed", "default" or "variant"
    equation: Equation
    options: Mapping[str, Any] = field(default_factory=dict)
    scene: str = "tables"
    olds: int = 1
    number: int = STEPS // 4

    @property
    def method(self) -> str:
        return self.name.partition("+")[0]

    @property
    def label(self) -> str:
        given = [f"{name}={value}" for name, value in self.options.items()]
        where = [self.scene] if self.scene != "tables" else []
        return " ".join([self.name, self.kind, *given, *where, *["chain"] * (self.olds > 1)])


# --- equations that need more than the models' outputs -------------------------------------------


def of(equation: Callable[..., Tensor], **numbers: Any) -> Equation:
    return lambda call: equation(call.said, **numbers)


def projection_of(call: Call) -> list[plain.Row] | None:
    found = getattr(call.objective.trained, "projection", None)
    return None if found is None else plain.rows(found.weight)


def features_of(model: nn.Module, at: Scene) -> list[plain.Row]:
    assert isinstance(model, Features)
    return plain.rows(model.rows[at.inputs[:, 0].long()])


def bct(call: Call, **numbers: float) -> Tensor:
    head = call.at.olds[0].head
    assert isinstance(head, nn.Linear)
    return others.bct(
        call.said,
        features=features_of(call.at.student, call.at),
        head=plain.constants(head.weight),
        bias=list(head.bias.detach().unbind()),
        projection=projection_of(call),
        **numbers,
    )


def ract(call: Call, **numbers: float) -> Tensor:
    with torch.no_grad():
        old_features = features_of(call.at.olds[0], call.at)
    return others.ract(
        call.said,
        features=features_of(call.at.student, call.at),
        old_features=old_features,
        projection=projection_of(call),
        **numbers,
    )


def confusion_of(model: nn.Module, at: Scene) -> list[list[float]]:
    """Counts on the held-out samples, plus one in every cell."""
    predicted = [plain.prediction(row) for x, _ in at.held_out for row in plain.constants(model(x))]
    target = [label for _, y in at.held_out for label in y.tolist()]
    return plain.estimate_confusion(predicted, target, CLASSES)


def bu_cr(call: Call, *, cost_ratio: float) -> Tensor:
    return others.bu_cr(
        call.said,
        old_confusion=confusion_of(call.at.olds[0], call.at),
        # During the first epoch, new's predictions have no weight.
        new_confusion=[[1 / CLASSES] * CLASSES] * CLASSES,
        cost_ratio=cost_ratio,
    )


def offline(call: Call) -> Tensor:
    return equations.elodi(call.said, reference=plain.constants(call.at.stored[list(PLACES)]))


def views(call: Call) -> Tensor:
    rows = plain.constants(call.at.views[list(PLACES)].double())
    return equations.elodi(call.said, reference=rows)


def codistill(call: Call, agreement: str, *, stale: bool = False, **numbers: Any) -> Tensor:
    if stale:
        numbers |= {"stale_new": call.stale["student"], "stale_twin": call.stale["twin"]}
    return equations.codistill(call.said, agreement, **numbers)


def l2_sp(call: Call, *, strength: float) -> Tensor:
    return others.elastic(
        call.said,
        weights=dict(call.at.student.named_parameters()),
        anchors=dict(call.at.olds[0].named_parameters()),
        strength=strength,
    )


def ewc(call: Call, *, strength: float, samples: int) -> Tensor:
    return others.elastic(
        call.said,
        weights=dict(call.at.student.named_parameters()),
        anchors=dict(call.at.olds[0].named_parameters()),
        strength=strength,
        importance=fisher(call.at.olds[0], call.at, samples),
    )


def fisher(model: nn.Module, at: Scene, samples: int) -> dict[str, Tensor]:
    """The mean of (d log p(y | x) / d w)^2 over samples x, with y drawn from old's p (seed 0)."""
    weights = dict(model.named_parameters())
    found = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.cat([x for x, _ in at.held_out])[:samples]
    for one in inputs:
        (scores,) = plain.rows(model(one[None]))
        chances = torch.stack(plain.softmax(scores)).detach()
        label = int(torch.multinomial(chances, 1, generator=drawn))
        slopes = torch.autograd.grad(plain.log_softmax(scores)[label], list(weights.values()))
        for name, slope in zip(weights, slopes, strict=True):
            found[name] += slope**2 / len(inputs)
    return found


# --- the cases -----------------------------------------------------------------------------------

GROWTH = STEPS // 2  # the steps over which strengths grow by default
BURN_IN = STEPS // 10  # the steps before a strength in one step, by default
fd_kl, fd_lm, elodi = equations.fd_kl, equations.fd_lm, equations.elodi
# Departures from the papers that are our defaults.
FD_KL = {"t_squared": True, "direction": "KL(old || new)"}
LDI = {"k": None, "over_classes": "mean"}

default = partial(Case, kind="default")
variant = partial(Case, kind="variant")


def printed(name: str, equation: Equation, *, scene: str = "tables", **given: Any) -> Case:
    """A method as its paper prints it, except for the given options."""
    preset = {"preset": "paper"} if METHODS[name.partition("+")[0]].options else {}
    return Case(
        name=name, kind="printed", options={**preset, **given}, equation=equation, scene=scene
    )


def both(name: str, equation: Equation, *, scene: str = "tables") -> list[Case]:
    """A method whose default is the paper's equation."""
    return [
        printed(name, equation, scene=scene),
        default(name=name, equation=equation, scene=scene),
    ]


CASES = [
    *both("none", of(equations.task)),
    *both("dropout", of(equations.task)),
    *both("naive", of(equations.naive)),
    variant(name="naive", options={"weight": 0.7}, equation=of(equations.naive, weight=0.7)),
    variant(name="naive", scene="grown", equation=of(equations.naive)),
    *both("kd", of(equations.kd, **FD_KL)),  # as Hinton et al. print it
    variant(  # as PCT does: equation 8 with focus 0
        name="kd", options={"direction": "reverse", "t_squared": False}, equation=of(equations.kd)
    ),
    variant(
        name="kd",
        options={"weight": 0.3, "temperature": 2.0},
        equation=of(equations.kd, weight=0.3, temperature=2.0, **FD_KL),
    ),
    variant(name="kd", scene="grown", equation=of(equations.kd, **FD_KL)),
    printed("fd-kl", of(fd_kl)),
    printed("fd-kl", of(fd_kl), scene="grown"),
    default(name="fd-kl", equation=of(fd_kl, **FD_KL)),
    variant(
        name="fd-kl",
        options={"weight": 0.7, "base": 0.5, "focus": 2.0, "temperature": 3.0},
        equation=of(fd_kl, weight=0.7, base=0.5, focus=2.0, temperature=3.0, **FD_KL),
    ),
    variant(name="fd-kl", scene="grown", equation=of(fd_kl, **FD_KL)),
    printed("fd-lm", of(fd_lm)),
    printed("fd-lm", of(fd_lm), scene="grown"),
    default(name="fd-lm", equation=of(fd_lm, over_classes="mean")),
    variant(
        name="fd-lm",
        options={"weight": 0.7, "base": 0.5, "focus": 2.0},
        equation=of(fd_lm, weight=0.7, base=0.5, focus=2.0, over_classes="mean"),
    ),
    *(
        variant(
            name="fd-lm",
            options={"filter": picks},
            scene=where,
            equation=of(fd_lm, filter=picks, over_classes="mean"),
        )
        for picks in ("all", "new_wrong", "negative_flip")
        for where in ("tables", "grown")
    ),
    variant(name="fd-lm", scene="grown", options={"class_reduction": "sum"}, equation=of(fd_lm)),
    variant(name="fd-lm", olds=2, options={"class_reduction": "sum"}, equation=of(fd_lm)),
    *both("bct", bct, scene="features"),
    variant(name="bct", scene="wider", options={"weight": 0.3}, equation=partial(bct, weight=0.3)),
    *both("ract", ract, scene="features"),
    variant(
        name="ract",
        scene="wider",
        options={"weight": 0.3, "temperature": 0.5},
        equation=partial(ract, weight=0.3, temperature=0.5),
    ),
    *both("bu-cr", partial(bu_cr, cost_ratio=2.5)),
    variant(name="bu-cr", options={"cost_ratio": 6.0}, equation=partial(bu_cr, cost_ratio=6.0)),
    printed("elodi", of(elodi)),
    # Eq. 5 ranks by the ensemble, eq. 7 takes all classes, and eq. 9 has no cross-entropy.
    printed("elodi", of(elodi, rank_by="reference"), rank_by="reference"),
    printed("elodi", of(elodi, k=None), k=None),
    printed("elodi", of(elodi, alpha=1.0, legacy=0.3), alpha=1.0, legacy=0.3),
    printed("elodi", of(elodi, alpha=1.0, legacy=0.3), scene="grown", alpha=1.0, legacy=0.3),
    default(name="elodi", equation=of(elodi, **LDI)),
    variant(
        name="elodi",
        options={"alpha": 0.3, "p": 3.0, "k": 4, "rank_by": "both"},
        equation=of(elodi, alpha=0.3, p=3.0, k=4, rank_by="both", over_classes="mean"),
    ),
    variant(name="elodi", options={"p": 1.0}, equation=of(elodi, p=1.0, **LDI)),
    *(
        printed("elodi", of(elodi, margin=1.5, p=p), margin=1.5, p=p)  # of significant changes
        for p in (1.0, 2.0)
    ),
    variant(
        name="elodi",
        options={"margin": 1.5, "legacy": 0.1},
        equation=of(elodi, margin=1.5, legacy=0.1, **LDI),
    ),
    *(
        variant(
            name="elodi", options={"legacy": 0.1}, equation=of(elodi, legacy=0.1, **LDI), **where
        )
        for where in ({}, {"scene": "grown"}, {"olds": 2})
    ),
    variant(
        name="elodi",
        options={"online": False, "k": 10, "class_reduction": "sum"},
        equation=offline,
    ),
    variant(name="elodi", options={"views": 2, "k": 10, "class_reduction": "sum"}, equation=views),
    *both("entropy", of(equations.entropy)),
    variant(
        name="entropy",
        options={"alpha": 0.4, "k": 10},
        equation=of(equations.entropy, alpha=0.4, k=10),
    ),
    printed("skl", of(equations.skl)),
    default(name="skl", equation=of(equations.skl, floor=1e-7)),
    variant(
        name="skl",
        options={"alpha": 0.3, "k": 10, "floor": 1e-3},
        equation=of(equations.skl, alpha=0.3, k=10, floor=1e-3),
    ),
    *both("codistill-skl", partial(codistill, agreement="skl", growth=GROWTH)),
    *both(
        "codistill-skl+entropy",
        partial(codistill, agreement="skl", growth=GROWTH, plus="entropy"),
    ),
    printed("codistill-skl+skl", partial(codistill, agreement="skl", growth=GROWTH, plus="skl")),
    default(
        name="codistill-skl+skl",
        equation=partial(codistill, agreement="skl", growth=GROWTH, plus="skl", floor=1e-7),
    ),
    variant(
        name="codistill-skl",
        options={"beta": 0.5, "ramp": 0.1, "plus": "entropy", "alpha": 0.3},
        number=7,
        equation=partial(
            codistill, agreement="skl", growth=STEPS // 10, beta=0.5, plus="entropy", alpha=0.3
        ),
    ),
    *both("codistill-l1", partial(codistill, agreement="l1", growth=GROWTH)),
    *both("codistill-ce", partial(codistill, agreement="ce", stale=True, burn_in=BURN_IN)),
    variant(
        name="codistill-ce",
        options={"beta": 0.5, "burn_in": 0.2, "every": 3},
        number=STEPS // 5 + 1,
        equation=partial(codistill, agreement="ce", stale=True, beta=0.5, burn_in=STEPS // 5),
    ),
    # Every distance, updated and grown in every way, with each regulariser of the top 10.
    *(
        variant(
            name=f"codistill-{agreement}",
            number=number,
            options={
                "updates": "independent" if stale else "joint",
                "ramp_kind": kind,
                "every": 3,
                "beta": 0.5,
                "ramp": 0.3,
                "burn_in": 0.2,
                "plus": plus,
                "alpha": 0.3,
                "k": k,
                "floor": 1e-3,
            },
            equation=partial(
                codistill,
                agreement=agreement,
                stale=stale,
                **{"growth" if kind == "linear" else "burn_in": steps},
                beta=0.5,
                plus=plus,
                alpha=0.3,
                k=k,
                floor=1e-3,
            ),
        )
        for agreement in ("skl", "l1", "ce")
        for stale in (False, True)
        for kind, steps, number in (
            ("linear", STEPS * 3 // 10, 7),
            ("step", STEPS // 5, STEPS // 5 + 1),
        )
        for plus, k in (("nothing", None), ("entropy", 10), ("skl", 10))
    ),
    *(
        case
        for name, loss in (
            ("new-error", plain.new_error),
            ("strict-imitation", plain.strict_imitation),
            ("muscle", plain.muscle),
        )
        for case in (
            *both(name, of(plus(loss))),
            variant(name=name, options={"weight": 0.7}, equation=of(plus(loss), weight=0.7)),
            variant(name=name, scene="grown", equation=of(plus(loss))),
            variant(name=name, olds=2, equation=of(plus(loss))),
        )
    ),
    variant(
        name="muscle",
        options={"temperature": 3.0},
        equation=of(plus(plain.muscle), temperature=3.0),
    ),
    *both("l2-sp", partial(l2_sp, strength=0.01), scene="nets"),
    variant(
        name="l2-sp", options={"strength": 3.0}, scene="nets", equation=partial(l2_sp, strength=3.0)
    ),
    *both("ewc", partial(ewc, strength=10.0, samples=200), scene="nets"),
    variant(
        name="ewc",
        options={"strength": 3.0, "samples": 7},
        scene="nets",
        equation=partial(ewc, strength=3.0, samples=7),
    ),
    *both("label-mix", of(others.label_mix)),
    variant(name="label-mix", options={"share": 0.2}, equation=of(others.label_mix, share=0.2)),
    variant(name="label-mix", scene="grown", equation=of(others.label_mix)),
]
