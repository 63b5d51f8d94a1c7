"""`codistill-skl` and `codistill-ce`: two models are trained to agree, and the first is kept."""

from __future__ import annotations

import dataclasses
from typing import Any

from flipguard.methods.base import Method, Option, Options, Revision
from flipguard.methods.objective import BuildContext, LossParts, Objective, Step, task_loss
from flipguard.methods.without_old import FLOOR as FLOOR_ALONE

BETA = Option(name="beta", default=0.04, key_default=0.04, sentence="Weight of the agreement term.")
RAMP = Option(
    name="ramp",
    default=0.5,
    key_default=0.5,
    sentence="Share of the training during which the agreement's weight grows from 0.",
)
BURN_IN = Option(
    name="burn_in",
    default=0.1,
    key_default=0.1,
    sentence="Share of the training before the agreement term starts.",
)
EVERY = Option(
    name="every",
    default=50,
    key_default=50,
    sentence="Number of steps after which each model gets a new copy of the other.",
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
)

assert FLOOR_ALONE.printed is not None
FLOOR = dataclasses.replace(
    FLOOR_ALONE,
    sentence=f"With plus=skl: {FLOOR_ALONE.sentence[0].lower()}{FLOOR_ALONE.sentence[1:]}",
    printed=dataclasses.replace(FLOOR_ALONE.printed, only=("plus", "skl")),
)
MANY_CLASSES = 100  # with more, the paper takes the entropy of the 10 most probable ones
# Earlier, the gradients of both models were clipped as one vector.
CLIPPING = Revision(words="clipping per model", where=frozenset({"clip"}))


def _regulariser(setting: BuildContext) -> Any:
    """Return a function that sums the regulariser over both models, or None."""
    from flipguard.losses import EntropyRegularizer, UniformDivergence

    if setting.word("plus") == "entropy":
        entropy = EntropyRegularizer()
        return lambda first, second: entropy(new=first) + entropy(new=second)
    if setting.word("plus") == "skl":
        divergence = UniformDivergence(floor=setting.number("floor"))
        return lambda first, second: -divergence(new=first) - divergence(new=second)
    return None


def _build_skl(setting: BuildContext) -> Objective:
    from torch import nn

    from flipguard.losses import CoDistillation, Ramp

    twin, agree = setting.new_model("twin"), CoDistillation(kind="skl")
    growth = int(setting.number("ramp") * setting.steps)
    beta = Ramp("linear", strength=setting.number("beta"), steps=growth)
    alpha = Ramp("linear", strength=setting.number("alpha"), steps=growth)
    regulariser = _regulariser(setting)

    def parts(step: Step) -> LossParts:
        second = step.call(twin)
        found = {
            "task": task_loss(setting, step.logits, step.target),
            "twin": task_loss(setting, second, step.target),
            "agreement": beta(step.number) * agree(first=step.logits, second=second),
        }
        if regulariser is not None:
            found["regulariser"] = alpha(step.number) * regulariser(step.logits, second)
        return found

    return Objective(parts=parts, trained=nn.ModuleDict({"twin": twin}))


def _build_ce(setting: BuildContext) -> Objective:
    from torch import nn

    from flipguard.losses import CoDistillation, Ramp
    from flipguard.references import Peer

    twin, agree = setting.new_model("twin"), CoDistillation(kind="ce")
    every = int(setting.number("every"))
    # Each model learns from an earlier copy of the other, so that neither waits for the other.
    first_peer, second_peer = Peer(setting.model, every=every), Peer(twin, every=every)
    burn_in = int(setting.number("burn_in") * setting.steps)
    beta = Ramp("step", strength=setting.number("beta"), steps=burn_in)

    def parts(step: Step) -> LossParts:
        second, strength = step.call(twin), beta(step.number)
        found = {
            "task": task_loss(setting, step.logits, step.target),
            "twin": task_loss(setting, second, step.target),
        }
        if strength:
            to_first = agree(first=step.logits, second=step.call(second_peer))
            to_second = agree(first=second, second=step.call(first_peer))
            found["agreement"] = strength * (to_first + to_second)
        return found

    def after_step() -> None:
        first_peer.step()
        second_peer.step()

    def state() -> dict[str, Any]:
        return {"first": first_peer.state_dict(), "second": second_peer.state_dict()}

    def restore(saved: dict[str, Any]) -> None:
        first_peer.load_state_dict(saved["first"])
        second_peer.load_state_dict(saved["second"])

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


def _entropy_of_all(options: Options, classes: int) -> tuple[str, ...]:
    if PLUS.of(options) != "entropy" or classes <= MANY_CLASSES:
        return ()
    return ("entropy of all classes, where the paper has the top 10",)


CODISTILL_SKL = Method(
    name="codistill-skl",
    sentence="Trains two models and pulls their predictions to each other; keeps the first.",
    paper="Reproducibility, equations 9 and 19",
    build=_build_skl,
    options=(BETA, RAMP, PLUS, ALPHA, FLOOR),
    cost=_two_models,
    unlike_at=_entropy_of_all,
    revisions=(CLIPPING,),
)
CODISTILL_CE = Method(
    name="codistill-ce",
    sentence=(
        "Trains two models, and pulls the predictions of each to an earlier copy of the other; "
        "keeps the first."
    ),
    paper="Reproducibility, equation 18; Anil et al., 2018",
    build=_build_ce,
    options=(BETA, BURN_IN, EVERY),
    cost=_two_models,
    revisions=(CLIPPING,),
)
