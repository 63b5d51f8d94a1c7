"""`entropy` and `skl`: confident predictions, which flip less, without any reference."""

from __future__ import annotations

from flipguard.methods.base import (
    Method,
    Objective,
    Option,
    Parts,
    Printed,
    Setting,
    Step,
    task,
    top_in,
)

ALPHA = Option(name="alpha", default=0.15, sentence="Share of the regulariser in the loss.")
# Without it the divergence from uniform has no bound, and a net that learns its samples by heart
# lowers its loss forever by larger logits.
FLOOR = Option(
    name="floor",
    default=1e-7,
    sentence="Added to probabilities under the logarithm; 0 is as printed, without bound.",
    printed=Printed(
        value=0.0,
        words="added to probabilities under SKL's logarithm, which has no bound as printed",
        formula=True,
    ),
)
TOP = Option(
    name="k",
    default=None,
    sentence="How many of the likeliest classes; all if none.",
    counts="classes",
)


def _build_entropy(setting: Setting) -> Objective:
    from flipguard.losses import EntropyRegularizer

    alpha, regularizer = setting.number("alpha"), EntropyRegularizer(top_in(setting.options))

    def parts(step: Step) -> Parts:
        return {
            "task": (1 - alpha) * task(setting, step.logits, step.target),
            "entropy": alpha * regularizer(new=step.logits),
        }

    return Objective(parts=parts)


def _build_skl(setting: Setting) -> Objective:
    from flipguard.losses import UniformDivergence

    alpha = setting.number("alpha")
    divergence = UniformDivergence(top_in(setting.options), floor=setting.number("floor"))

    def parts(step: Step) -> Parts:
        return {
            "task": (1 - alpha) * task(setting, step.logits, step.target),
            "skl": -alpha * divergence(new=step.logits),
        }

    return Objective(parts=parts)


ENTROPY = Method(
    name="entropy",
    sentence="Minimum entropy: predictions that are sure flip less.",
    paper="Reproducibility, equation 6",
    build=_build_entropy,
    options=(ALPHA, TOP),
)
SKL = Method(
    name="skl",
    sentence="Far from uniform: as entropy, by the symmetric divergence.",
    paper="Reproducibility, equation 7",
    build=_build_skl,
    options=(
        Option(name="alpha", default=0.05, sentence=ALPHA.sentence),
        TOP,
        FLOOR,
    ),
)
