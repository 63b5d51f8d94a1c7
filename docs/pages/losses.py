"""The cards of the losses."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import sys
import typing

from flipguard import losses
from flipguard.losses.base import LossTerm


def terms() -> list[type[LossTerm]]:
    """The losses, by module and in the order in which they are defined there."""
    public = [getattr(losses, name) for name in losses.__all__]
    kinds = [kind for kind in public if isinstance(kind, type) and issubclass(kind, LossTerm)]
    for kind in kinds:
        if "card" not in vars(kind):
            sys.exit(f"{kind.__module__}.{kind.__name__} lacks a `card`.")
    return sorted(kinds, key=lambda kind: (kind.__module__, inspect.getsourcelines(kind)[1]))


def function_of(term: type[LossTerm]) -> str:
    """The function that has the name of the class, apart from upper case and underscores."""
    names = {name.replace("_", ""): name for name in losses.__all__ if name.islower()}
    if term.__name__.lower() not in names:
        sys.exit(f"flipguard.losses has no function for {term.__name__}.")
    return names[term.__name__.lower()]


def losses_page() -> str:
    """Return one card per loss: its docstring's sentence and example, and its `card`."""
    lines = [
        "# Losses",
        "",
        "Each loss is one term to add to the loss of the task. Tensors are keyword-only. The classes are on the last axis.",
        "`old`, `reference` and `control` get no gradient. Every module has a function with the same options. See [how to",
        "use them in a loop](training.md) and [what they cost](results/losses.md).",
        "",
        "*PCT* is Positive-Congruent Training (Yan et al., 2021), *ELODI* is Zhao et al., 2022, and",
        "*Reproducibility* is On the Reproducibility of Neural Network Predictions (Bhojanapalli et",
        "al., 2021). *NFR* is the negative flip rate: the share of all samples that the old model gets right and",
        "the new one gets wrong. *Old right* means that the old model's highest logit is that of the target. Most losses",
        "have these options: `classes` says which classes correspond if the old model knows others,",
        "`ignore_index` marks samples without a target, and `reduction` is over the samples.",
        "",
        "| loss | what it does | paper |",
        "|---|---|---|",
    ]
    for term in terms():
        name, sentence = term.__name__, _sentence(term).split(": ", 1)[-1].rstrip(".")
        lines.append(f"| [`{name}`](#{name.lower()}) | {sentence} | {term.card.paper} |")
    for term in terms():
        card = term.card
        lines += [
            "",
            f"## `{term.__name__}`",
            "",
            _sentence(term),
            "",
            f"- **When to use it.** {card.use}",
            f"- **Formula.** `{card.formula}`",
            f"- **Options.** {_options(term)}",
            f"- **Called with.** `({_call(term)})`",
            f"- **Function.** `flipguard.losses.{function_of(term)}`",
            f"- **Paper.** {card.paper}",
            f"- **Pitfalls.** {card.pitfalls}",
            "",
            "```python",
            *_doctest(term),
            "```",
        ]
    return "\n".join(lines) + "\n"


def _sentence(term: type) -> str:
    return inspect.getdoc(term).split("\n", 1)[0]


def _options(term: type) -> str:
    """The options with their defaults and, if there is a choice, the other choices."""
    parameters = list(inspect.signature(term).parameters.values())
    optional = all(p.default is not p.empty for p in parameters)
    made = term() if optional else None  # shows the value that None stands for
    hints = typing.get_type_hints(term.__init__)
    told = []
    for p in parameters:
        if p.default is p.empty:
            told.append(f"`{p.name}`")
            continue
        default = getattr(made, p.name, p.default)
        hint = hints[p.name]
        # An option that only sets others, such as a preset.
        hint = hint.type if isinstance(hint, dataclasses.InitVar) else hint
        others = [repr(c) for c in _choices(hint) if c != default]
        told.append(
            f"`{p.name}={default!r}`" + (f" (or `{'`, `'.join(others)}`)" if others else "")
        )
    return ", ".join(told)


def _choices(hint: object) -> list[str]:
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [choice for kind in typing.get_args(hint) for choice in _choices(kind)]


def _call(term: type) -> str:
    """The call: the tensors by name."""
    parameters = inspect.signature(term.forward).parameters.values()
    named = [p for p in parameters if p.name != "self"]
    return ", ".join(p.name + "=" + ("" if p.default is p.empty else "None") for p in named)


def _doctest(term: type) -> list[str]:
    """The docstring's example as plain Python, its results as comments."""
    lines = [f"from flipguard.losses import {term.__name__}"]
    for example in doctest.DocTestParser().get_examples(inspect.getdoc(term)):
        lines += example.source.rstrip().splitlines()
        wanted = example.want.replace(", grad_fn=<...>", "").rstrip()
        lines += [f"# {line}" for line in wanted.splitlines()]
    return lines
