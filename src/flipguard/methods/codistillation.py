"""`codistill-skl`, `codistill-l1` and `codistill-ce`: two models learn to agree; one is kept.

The methods differ in how agreement is measured. Each can be updated jointly or independently, with
a weight that grows linearly or in one step; the defaults are those of the paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from flipguard.methods.base import Method, Option, Printed, Revision
from flipguard.methods.objective import (
    BuildContext,
    LossParts,
    Objective,
    Step,
    task_loss,
    top_in,
)
from flipguard.methods.without_old import FLOOR as FLOOR_ALONE
from flipguard.methods.without_old import TOP as TOP_ALONE

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flipguard.references import Peer

Agreement: TypeAlias = Literal["skl", "ce", "l1"]
Distance: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"

BETA = Option(
    name="beta",
    default=0.04,
    key_default=0.04,
    sentence="Weight of the agreement term.",
    is_weight=True,
)
RAMP = Option(
    name="ramp",
    default=0.5,
    key_default=0.5,
    sentence="With ramp_kind=linear: share of the training during which weights grow from 0.",
)
BURN_IN = Option(
    name="burn_in",
    default=0.1,
    key_default=0.1,
    sentence="With ramp_kind=step: share of the training before weights are used.",
)
EVERY = Option(
    name="every",
    default=50,
    key_default=50,
    sentence=(
        "With updates=independent: number of steps after which each model gets a new copy of the "
        "other."
    ),
)
PLUS = Option(
    name="plus",
    default="nothing",
    key_default="nothing",
    sentence="Regulariser to add to the agreement term.",
    choices=("nothing", "entropy", "skl"),
)
ALPHA = Option(
    name="alpha",
    default=0.1,
    key_default=0.1,
    sentence="Weight of the regulariser `plus`; it grows like the agreement's weight.",
    is_weight=True,
)
TOP = dataclasses.replace(
    TOP_ALONE,
    sentence=(
        "With `plus`: use only this many of the most probable classes, 10 in the paper on "
        "ImageNet; without it, all classes are used."
    ),
)
assert FLOOR_ALONE.printed is not None
FLOOR = dataclasses.replace(
    FLOOR_ALONE,
    sentence=f"With plus=skl: {FLOOR_ALONE.sentence[0].lower()}{FLOOR_ALONE.sentence[1:]}",
    printed=dataclasses.replace(FLOOR_ALONE.printed, only=("plus", "skl")),
)
# Earlier, the gradients of both models were clipped as one vector.
CLIPPING = Revision(words="clipping per model", where=frozenset({"clip"}))


def _updates(usual: str) -> Option:
    return Option(
        name="updates",
        default=usual,
        key_default=usual,
        sentence=(
            "Update both models with the gradient of one loss (joint), or each with its own loss, "
            "against an earlier copy of the other (independent)."
        ),
        choices=("joint", "independent"),
        printed=Printed(value=usual, formula=True),
    )


def _ramp_kind(usual: str) -> Option:
    return Option(
        name="ramp_kind",
        default=usual,
        key_default=usual,
        sentence="Let the weights of the added terms grow from 0 (linear), or start late (step).",
        choices=("linear", "step"),
        printed=Printed(value=usual, formula=True),
    )


def _regulariser(setting: BuildContext) -> Distance | None:
    """Return a function that sums the regulariser over both models, or None."""
    from flipguard.losses import EntropyRegularizer, UniformDivergence

    if setting.word("plus") == "entropy":
        entropy = EntropyRegularizer(k=top_in(setting.options))
        return lambda first, second: entropy(new=first) + entropy(new=second)
    if setting.word("plus") == "skl":
        divergence = UniformDivergence(k=top_in(setting.options), floor=setting.number("floor"))
        return lambda first, second: -divergence(new=first) - divergence(new=second)
    return None


def _joint_distance(agreement: Agreement) -> Distance:
    """Return the distance of two models that both learn from it."""
    from flipguard.losses import CoDistillation, EntropyRegularizer

    if agreement != "ce":
        pair = CoDistillation(kind=agreement)
        return lambda first, second: pair(first=first, second=second)
    # H(p, q) + H(q, p) is the symmetric divergence plus both entropies.
    apart, entropy = CoDistillation(kind="skl"), EntropyRegularizer()
    return lambda first, second: (
        apart(first=first, second=second) + entropy(new=first) + entropy(new=second)
    )


def _ramps(setting: BuildContext) -> Callable[[str], Callable[[Any], Any]]:
    """Return a function from the name of a weight to its value by step."""
    from flipguard.losses import Ramp

    kind = setting.word("ramp_kind")
    share = setting.number("ramp" if kind == "linear" else "burn_in")
    steps = int(share * setting.steps)
    return lambda name: Ramp(kind, strength=setting.number(name), steps=steps)


def _build(setting: BuildContext, agreement: Agreement) -> Objective:
    if setting.word("updates") == "independent":
        return _independent(setting, agreement)
    return _joint(setting, agreement)


def _joint(setting: BuildContext, agreement: Agreement) -> Objective:
    """Return the objective of equations 8, 9 and 19, in which both models learn from one loss."""
    from torch import nn

    twin, agree = setting.new_model("twin"), _joint_distance(agreement)
    ramp = _ramps(setting)
    beta, alpha = ramp("beta"), ramp("alpha")
    regulariser = _regulariser(setting)

    def parts(step: Step) -> LossParts:
        second = step.call(twin)
        found = {
            "task": task_loss(setting, step.logits, step.target),
            "twin": task_loss(setting, second, step.target),
            "agreement": beta(step.number) * agree(step.logits, second),
        }
        if regulariser is not None:
            found["regulariser"] = alpha(step.number) * regulariser(step.logits, second)
        return found

    return Objective(parts=parts, trained=nn.ModuleDict({"twin": twin}))


def _independent(setting: BuildContext, agreement: Agreement) -> Objective:
    """Return the objective of equation 18, in which each model follows a copy of the other."""
    from flipguard.losses import CoDistillation
    from flipguard.references import Peer

    twin, agree = setting.new_model("twin"), CoDistillation(kind=agreement)
    every = int(setting.number("every"))
    # Each model learns from an earlier copy of the other, so that neither waits for the other.
    peers = Peer(setting.model, every=every), Peer(twin, every=every)
    ramp = _ramps(setting)
    beta, alpha = ramp("beta"), ramp("alpha")
    regulariser = _regulariser(setting)

    def parts(step: Step) -> LossParts:
        second, strength = step.call(twin), beta(step.number)
        found = {
            "task": task_loss(setting, step.logits, step.target),
            "twin": task_loss(setting, second, step.target),
        }
        if regulariser is not None:
            found["regulariser"] = alpha(step.number) * regulariser(step.logits, second)
        # Last, because it starts later: the history of a resumed run has the same order of parts.
        if strength:
            to_first = agree(first=step.logits, second=step.call(peers[1]))
            to_second = agree(first=second, second=step.call(peers[0]))
            found["agreement"] = strength * (to_first + to_second)
        return found

    return _with_peers(parts, twin, peers)


def _with_peers(
    parts: Callable[[Step], LossParts], twin: nn.Module, peers: tuple[Peer, Peer]
) -> Objective:
    """Return an objective with copies that get older and are saved."""
    from torch import nn

    names = ("first", "second")

    def after_step() -> None:
        for peer in peers:
            peer.step()

    def state() -> dict[str, Any]:
        return {name: peer.state_dict() for name, peer in zip(names, peers, strict=True)}

    def restore(saved: dict[str, Any]) -> None:
        for name, peer in zip(names, peers, strict=True):
            peer.load_state_dict(saved[name])

    return Objective(
        parts=parts,
        trained=nn.ModuleDict({"twin": twin}),
        after_step=after_step,
        state=state,
        restore=restore,
        replayable=False,  # each step decides in Python whether the agreement term has started
    )


def _two_models(*_: object) -> float:
    """Return the cost of a step in which two models are trained."""
    return 2.0


def _method(
    agreement: Agreement, *, sentence: str, paper: str, updates: str, ramp_kind: str
) -> Method:
    return Method(
        name=f"codistill-{agreement}",
        sentence=sentence,
        paper=paper,
        build=lambda setting: _build(setting, agreement),
        options=(
            *(BETA, _updates(updates), EVERY, _ramp_kind(ramp_kind), RAMP, BURN_IN),
            *(PLUS, ALPHA, TOP, FLOOR),
        ),
        cost=_two_models,
        revisions=(CLIPPING,),
    )


CODISTILL_SKL = _method(
    "skl",
    sentence="Trains two models and pulls their predictions to each other; keeps the first.",
    paper="Reproducibility, equations 9 and 19",
    updates="joint",
    ramp_kind="linear",
)
CODISTILL_L1 = _method(
    "l1",
    sentence="Like codistill-skl, by the sum of the absolute differences of probabilities.",
    paper="Reproducibility, equation 8",
    updates="joint",
    ramp_kind="linear",
)
CODISTILL_CE = _method(
    "ce",
    sentence=(
        "Trains two models, and pulls the predictions of each to an earlier copy of the other; "
        "keeps the first."
    ),
    paper="Reproducibility, equation 18; Anil et al., 2018",
    updates="independent",
    ramp_kind="step",
)
