"""The cards of the losses."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import sys
import tomllib
import typing

from torch import nn

from flipguard import losses
from pages.places import DOCS


def losses_page() -> str:
    """Return one card per loss: its docstring's sentence and example, and what docs/losses.toml adds."""
    cards = tomllib.loads((DOCS / "losses.toml").read_text())
    terms = [
        name
        for name in losses.__all__
        if isinstance(value := getattr(losses, name), type) and issubclass(value, nn.Module)
    ]
    if set(terms) != set(cards):
        sys.exit(f"docs/losses.toml and flipguard.losses differ in {set(terms) ^ set(cards)}.")
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
    for name, card in cards.items():
        sentence = _sentence(getattr(losses, name)).split(": ", 1)[-1].rstrip(".")
        lines.append(f"| [`{name}`](#{name.lower()}) | {sentence} | {card['paper']} |")
    for name, card in cards.items():
        term = getattr(losses, name)
        lines += [
            "",
            f"## `{name}`",
            "",
            _sentence(term),
            "",
            f"- **When to use it.** {card['use']}",
            f"- **Formula.** `{card['formula']}`",
            f"- **Options.** {_options(term)}",
            f"- **Called with.** `({_call(term)})`",
            f"- **Function.** `flipguard.losses.{card['function']}`",
            f"- **Paper.** {card['paper']}",
            f"- **Pitfalls.** {card['beware']}",
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
