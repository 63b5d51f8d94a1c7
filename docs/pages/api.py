"""The API reference: one page per module, from its ``__all__`` and the groups in ``api.toml``.

A loss is not in ``api.toml``: the section of its card is its group.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import tomllib

from pages.losses import function_of, terms
from pages.places import DOCS


def modules() -> dict[str, dict]:
    """The modules of the reference with their introductions and groups."""
    described = tomllib.loads((DOCS / "api.toml").read_text())
    _add_losses(described["flipguard.losses"]["groups"])
    return described


def _add_losses(groups: dict[str, list[str]]) -> None:
    """Put each loss and its function at the beginning of its group."""
    added: dict[str, list[str]] = {group: [] for group in groups}
    for term in terms():
        if term.card.section not in groups:
            sys.exit(f"docs/api.toml has no group {term.card.section!r}.")
        added[term.card.section] += [term.__name__, function_of(term)]
    groups |= {group: [*added[group], *names] for group, names in groups.items()}


def index_page() -> str:
    """Return the index: one line per module."""
    lines = [
        "# API reference",
        "",
        "The names listed here are public. All other names may change without notice.",
        "",
        "| module | |",
        "|---|---|",
    ]
    for name in modules():
        sentence = _sentence(importlib.import_module(name)).removeprefix(f"{name}: ")
        lines.append(f"| [`{name}`]({name}.md) | {sentence[:1].upper()}{sentence[1:]} |")
    lines += ["", "```{toctree}", ":hidden:", "", *modules(), "```"]
    return "\n".join(lines) + "\n"


def module_page(name: str) -> str:
    """Return the page of a module: its names in a table, then each in full."""
    module, described = importlib.import_module(name), modules()[name]
    groups: dict[str, list[str]] = described["groups"]
    grouped = [one for names in groups.values() for one in names]
    if sorted(grouped) != sorted(module.__all__):
        differ = sorted(set(grouped) ^ set(module.__all__)) or "a name that is listed twice"
        sys.exit(f"docs/api.toml and {name}.__all__ differ in {differ}.")
    lines = [f"# `{name}`", "", described["intro"]]
    for group, names in groups.items():
        lines += ["", f"## {group}", "", "| name | |", "|---|---|"]
        lines += [f"| `{one}` | {_described(name, one)} |" for one in names]
        lines += ["", "```{eval-rst}"]
        for one in names:
            lines += [*_directive(name, one), ""]
        lines[-1] = "```"
    return "\n".join(lines) + "\n"


CONSTANTS = {
    "METRICS": "All metrics by name. Each has a sentence, a formula, and `value`, a function of counts.",
    "METHODS": "All methods by name.",
    "ANALYSES": "All analyses by name.",
    "DATA_SETS": "All data sets by name.",
    "AUGMENTATIONS": "All augmentations by name.",
    "MODELS": "All families of models by name.",
    "Inputs": "The input of a model: a tensor, or tensors by name.",
    "__version__": "The version.",
}


def _described(module: str, name: str) -> str:
    if name in CONSTANTS:
        return CONSTANTS[name]
    sentence = _sentence(getattr(importlib.import_module(module), name))
    sentence = re.sub(r" See :class:`\w+`\.", "", sentence)
    return sentence.replace("``", "`").replace("|", "\\|")


def _sentence(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n", 1)[0].replace("\n", " ")


def _directive(module: str, name: str) -> list[str]:
    thing = getattr(importlib.import_module(module), name)
    full = f"{module}.{name}"
    if name in CONSTANTS:
        return [f".. py:data:: {full}", "", f"   {CONSTANTS[name]}"]
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return [f".. autoexception:: {full}"]
    if inspect.isclass(thing):
        return [f".. autoclass:: {full}", "   :members:"]
    return [f".. autofunction:: {full}"]
