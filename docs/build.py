"""Renders the generated pages and pictures of the documentation: `make docs`.

With ``--check`` nothing is written, and the exit code tells whether a page is out of date.
"""

from __future__ import annotations

import argparse
import doctest
import inspect
import json
import sys
import tomllib
import typing
from functools import partial
from pathlib import Path

import api_pages  # beside this file
import ensemble_pages
import pictures
import result_pages
import study_pages
import training_pages

from flipguard import METRICS, Predictions, compare

DOCS = Path(__file__).resolve().parent

RESULTS = DOCS.parent / "benchmarks" / "results"
NEEDS = {
    "target": "targets",
    "old scores": "old's scores",
    "new scores": "new's scores",
    "logits": "logits on both sides",
    "control": "a control",
}


def metrics_page() -> str:
    """A card a metric: what it says, its formula, an example that was computed just now."""
    cards = tomllib.loads((DOCS / "cards.toml").read_text())
    missing, extra = set(METRICS) - set(cards), set(cards) - set(METRICS)
    if missing or extra:
        sys.exit(f"docs/cards.toml lacks {sorted(missing)} and has too much: {sorted(extra)}.")
    example = _example()
    lines = [
        "# Metrics",
        "",
        "Rates are between 0 and 1 in code and files, and in percent where a person reads.",
        "Undefined is `nan` in Python and `null` in JSON, never 0. Every metric is a pure function",
        "of counts that add, so shards can be counted apart.",
        "",
        "The example on each card is one and the same: five samples, of which the old model gets",
        "the first three right.",
        "",
        "| sample | target | old's probabilities | new's probabilities | control's label |",
        "|---|---|---|---|---|",
    ]
    for i, target in enumerate(TARGETS):
        lines.append(f"| {i + 1} | {target} | {OLD[i]} | {NEW[i]} | {CONTROL[i]} |")
    for name, metric in METRICS.items():
        card = cards[name]
        needs = ", ".join(NEEDS[n] for n in sorted(metric.needs)) or "predicted labels only"
        estimate = example[name]
        better = {"lower": "lower is better", "higher": "higher is better", "neither": ""}
        interval = (
            ""
            if estimate.low != estimate.low
            else (f", interval {estimate.low:.3f} to {estimate.high:.3f}")
        )
        value = "undefined here" if not estimate.is_defined else f"{estimate.value:.4g}{interval}"
        lines += [
            "",
            f"## `{name}`",
            "",
            metric.sentence + (f" ({better[metric.better]})" if better[metric.better] else ""),
            "",
            f"- **When to use it.** {card['use']}",
            f"- **Formula.** `{metric.formula}`",
            f"- **Needs.** {needs}",
            f"- **Example.** {value}",
            f"- **Paper.** {card['paper']}",
            f"- **Pitfalls.** {card['beware']}",
        ]
    return "\n".join(lines) + "\n"


TARGETS = [0, 1, 2, 0, 1]
OLD = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.3, 0.6, 0.1], [0.1, 0.2, 0.7]]
NEW = [[0.8, 0.1, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1], [0.5, 0.2, 0.3]]
CONTROL = [1, 1, 1, 0, 2]


def _example():
    import numpy as np

    return compare(
        old=Predictions.from_arrays(logits=np.log(OLD), targets=TARGETS),
        new=Predictions.from_arrays(logits=np.log(NEW)),
        control=Predictions.from_arrays(labels=CONTROL),
    )


def evidence_page() -> str:
    """Speed and memory, from the committed rows."""
    document = json.loads((RESULTS / "evidence.json").read_text())
    machine = document["machine"]
    lines = [
        "# Speed and memory of counting",
        "",
        f"Measured by `{document['command']}` on {machine['cores']} cores of {machine['cpu']} with "
        f"{machine['memory_gib']} GiB (Python {machine['python']}, Polars {machine['polars']}, "
        f"numpy {machine['numpy']}, pandas {machine['pandas']}). Each case is a process of its "
        "own; times are the best of its runs on a warm disk.",
        "",
        "| case | seconds | peak MiB |",
        "|---|---:|---:|",
    ]
    section = None
    for row in document["rows"]:
        if row.get("section", section) != section:
            section = row["section"]
            lines.append(f"| **{section}** | | |")
        if "seconds" in row:
            name = row["case"].split(": ", 1)[1]
            lines.append(f"| {name} | {row['seconds']:.3f} | {row['peak_mib']:,} |")
        else:
            lines.append(f"| {row['case']} | failed: {' '.join(row['failed'])[:80]} | |")
    lines += ["", "| ratio of times | |", "|---|---:|"]
    lines += [f"| {r['of']} / {r['to']} | {r['ratio']:.2f} |" for r in document["ratios"]]
    return "\n".join(lines) + "\n"


def calibration_page() -> str:
    """How often intervals cover and the gate errs, from the committed rows."""
    document = json.loads((RESULTS / "calibration.json").read_text())
    lines = [
        "# How often the intervals are right",
        "",
        f"Measured by `{document['command']}` (seed {document['seed']}), by drawing test sets",
        "from known truths. A 95 % interval should hold the truth in 95 % of them.",
        "",
        "| quantity | settings | lowest | highest | lowest of the rejected methods |",
        "|---|---:|---:|---:|---|",
    ]
    for quantity in dict.fromkeys(row["quantity"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["quantity"] == quantity]
        covers = [row["coverage"] for row in rows]
        rivals = {name for row in rows for name in row["rejected"]}
        worst = {
            name: min(row["rejected"][name] for row in rows if name in row["rejected"])
            for name in sorted(rivals)
        }
        told = ", ".join(f"{name} {100 * value:.1f} %" for name, value in worst.items())
        ends = f"{100 * min(covers):.1f} % | {100 * max(covers):.1f} %"
        lines.append(f"| {quantity} | {len(rows)} | {ends} | {told} |")
    lines += [
        "",
        "## Every setting",
        "",
        "| quantity | setting | n | expected count | method | covers |",
        "|---|---|---:|---:|---|---:|",
    ]
    for row in document["rows"]:
        lines.append(
            f"| {row['quantity']} | {row['setting']} | {row['n']:,} | {row['expected_count']} "
            f"| {row['method']} | {100 * row['coverage']:.1f} % |"
        )
    lines += [
        "",
        "## How often the gate errs",
        "",
        "| world | n | pass | fail | inconclusive | must be rare |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in document["gate"]:
        rare = row["must_be_rare"]
        told = "" if rare is None else f"{rare}: {100 * row['rate']:.1f} %"
        shares = (f"{100 * row[verdict]:.1f} %" for verdict in ("pass", "fail", "inconclusive"))
        lines.append(f"| {row['setting']} | {row['n']:,} | {' | '.join(shares)} | {told} |")
    return "\n".join(lines) + "\n"


def losses_page() -> str:
    """A card a loss: its docstring's words and example, and what the cards add."""
    from torch import nn

    from flipguard import losses

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
        "Each is one term to add to the task's own loss. Tensors are keyword-only; the classes are",
        "on the last axis; `old`, `reference` and `control` get no gradient. Every module has a",
        "function of the same options. [How to use them](training.md) in a loop, and",
        "[what they cost](results/losses.md).",
        "",
        "*PCT* is Positive-Congruent Training (Yan et al., 2021), *ELODI* is Zhao et al., 2022, and",
        "*Reproducibility* is On the Reproducibility of Neural Network Predictions (Bhojanapalli et",
        "al., 2021). *NFR* is the negative flip rate: the share of all samples that old got right and",
        "new gets wrong. *Old right* means that old's highest logit is that of the target. Options that",
        "all or most have: `classes` says which classes are the same if old knows other ones,",
        "`ignore_index` marks samples without a target, and `reduction` is over the samples.",
        "",
        "| loss | | paper |",
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
    """The options with their defaults and, where there is a choice, what else there is."""
    parameters = list(inspect.signature(term).parameters.values())
    optional = all(p.default is not p.empty for p in parameters)
    made = term() if optional else None  # which knows what a None stands for
    hints = typing.get_type_hints(term.__init__)
    told = []
    for p in parameters:
        if p.default is p.empty:
            told.append(f"`{p.name}`")
            continue
        default = getattr(made, p.name, p.default)
        others = [repr(c) for c in _choices(hints[p.name]) if c != default]
        told.append(
            f"`{p.name}={default!r}`" + (f" (or `{'`, `'.join(others)}`)" if others else "")
        )
    return ", ".join(told)


def _choices(hint: object) -> list[str]:
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [choice for kind in typing.get_args(hint) for choice in _choices(kind)]


def _call(term: type) -> str:
    """How it is called: the tensors by name."""
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


def loss_costs_page() -> str:
    """What each loss costs, from the committed rows."""
    document = json.loads((RESULTS / "losses-cuda.json").read_text())
    machine = document["machine"]
    lines = [
        "# What the losses cost",
        "",
        f"Measured by `{document['command']}` on one {machine['device']} (torch "
        f"{machine['torch']}, Python {machine['python']}): forward and backward, microseconds a "
        "call, the best of several rounds in which all contenders take turns.",
        "",
        "- The *bare* formula is what one writes down from the paper, without checks, filters,",
        "  class maps or ignored samples, under `torch.compile`.",
        "- *Eager* is the loss as it comes; *compiled* is after `term.compile()`.",
        "- Calls of this size are bound by how fast the host launches kernels, which varies from run",
        "  to run. *On the device* is the time of a replayed CUDA graph: the device's work alone.",
        "- *Memory* is the peak of what a call allocates, gradient included, in units of the logits",
        "  that get a gradient. RACT compares all pairs of a batch, and MUSCLE is measured without a",
        "  control.",
        "",
        _costs_in_words(document["rows"]),
        "",
        "| loss | logits | bare, compiled | eager | compiled | eager / bare | compiled / bare "
        "| on the device: bare | compiled | ratio | memory: eager | compiled |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        times, device, peak = row["microseconds"], row["captured"], row["peak"]
        bare, fused = times["bare compiled"], device["bare compiled"]
        dtype = {"float32": "float32", "bfloat16": "bfloat16"}[row["dtype"]]
        lines.append(
            f"| {row['loss']} | {row['samples']:,} x {row['classes']:,} {dtype} | {bare:.0f} "
            f"| {times['ours']:.0f} | {times['ours compiled']:.0f} | {times['ours'] / bare:.2f} "
            f"| {times['ours compiled'] / bare:.2f} | {fused:.0f} | {device['ours compiled']:.0f} "
            f"| {device['ours compiled'] / fused:.2f} | {peak['ours']:.1f} "
            f"| {peak['ours compiled']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _costs_in_words(rows: list[dict]) -> str:
    """What the table says, with its own numbers."""
    times = [(row["microseconds"], row["captured"]) for row in rows]
    compiled = max(t["ours compiled"] / t["bare compiled"] for t, _ in times)
    on_device = max(d["ours compiled"] / d["bare compiled"] for _, d in times)
    eager = max(t["ours"] / t["bare compiled"] for t, _ in times)
    many = {
        row["loss"]: row for row in rows if row["classes"] > 10_000 and row["dtype"] == "float32"
    }
    top, full = many["ldi"], many["ldi-all"]
    return (
        f"Compiled, a loss takes at most {compiled:.2f} times its compiled bare formula "
        f"({on_device:.2f} times on the device). Eager, it takes up to {eager:.1f} times as long, because "
        "each of its small steps is a kernel of its own. With "
        f"{top['classes']:,} classes the ten highest logits (`ldi`) need {top['peak']['ours']:.1f} "
        f"times the logits in memory, and all of them (`ldi-all`) {full['peak']['ours']:.1f} times; "
        f"on the device they take {top['captured']['ours compiled']:.0f} µs against "
        f"{full['captured']['ours compiled']:.0f} µs compiled, and {top['captured']['bare compiled']:.0f} µs with "
        "torch's own `topk`. Finding the highest logits reads them all, which is most of what the "
        "full form does: on this device the top-K form saves memory, and no time."
    )


def examples_page() -> str:
    """What the examples gain, from the committed rows."""
    document = json.loads((RESULTS / "examples.json").read_text())
    machine = document["machine"]
    lines = [
        "# What the examples gain",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, torch {machine['torch']}, Python "
        f"{machine['python']}): the programs of `examples/` for ten seeds each. Their settings were "
        "chosen by looking at seeds 0 to 4; seeds 10 to 14 were not looked at. The Lightning example "
        "compares pairs (old and new both untreated, old and new both treated); the others update one "
        "old model with and without treatment.",
        "",
        "| example | seed | error of control | of treated | NFR of control | of treated | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(row["example"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["example"] == name]
        numbers = [
            (
                row["control"]["error_new"],
                row["treated"]["error_new"],
                row["control"]["negative_flip_rate"],
                row["treated"]["negative_flip_rate"],
            )
            for row in rows
        ]
        for row, one in zip(rows, numbers, strict=True):
            lines.append(_example_row(name, row["seed"], one))
        mean = tuple(sum(column) / len(numbers) for column in zip(*numbers, strict=True))
        lines.append(_example_row(f"**{name}**", "mean", mean))
    return "\n".join(lines) + "\n"


def _example_row(name: str, seed: object, numbers: tuple[float, ...]) -> str:
    control, treated, flips, fewer = numbers
    return (
        f"| {name} | {seed} | {control:.2f} % | {treated:.2f} % | {flips:.2f} % | {fewer:.2f} % "
        f"| {fewer / flips:.2f} |"
    )


EXAMPLES = {
    "plain_loop": "focal distillation of logits (`fd-lm`), a plain loop",
    "transformers_trainer": "focal distillation of probabilities (`fd-kl`), fine-tuning with Transformers",
    "timm_model": "focal distillation of logits (`fd-lm`), two classes more, timm",
    "lightning_module": "ELODI, pairs of which both are treated, Lightning",
}


def choose_page() -> str:
    """The guide to the methods, with the means of the committed rows in their place."""
    rows = json.loads((RESULTS / "examples.json").read_text())["rows"]
    table = [
        "| what | error of control | of treated | NFR of control | of treated | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, told in EXAMPLES.items():
        mine = [row for row in rows if row["example"] == name]
        control, treated, flips, fewer = (
            sum(row[side][key] for row in mine) / len(mine)
            for key in ("error_new", "negative_flip_rate")
            for side in ("control", "treated")
        )
        table.append(
            f"| {told} | {control:.2f} % | {treated:.2f} % | {flips:.2f} % | {fewer:.2f} % "
            f"| {fewer / flips:.2f} |"
        )
    return _filled(DOCS / "guides" / "choose.md", "examples", table)


def large_data_page() -> str:
    """The guide to large data, with flipguard's own rows of the evidence in their place."""
    rows = json.loads((RESULTS / "evidence.json").read_text())["rows"]
    table = ["| | seconds | peak MiB |", "|---|---:|---:|"]
    section = ""
    for row in rows:
        section = row.get("section", section)
        if row["case"].split(": ", 1)[1].startswith("flipguard") and "seconds" in row:
            told = section if "start" not in section else "a whole command, 1,000 rows"
            table.append(f"| {told} | {row['seconds']:.2f} | {row['peak_mib']:,} |")
    return _filled(DOCS / "large-data.md", "evidence", table)


def _filled(page: Path, name: str, lines: list[str]) -> str:
    """A page written by hand, with what is between two marks put in anew."""
    start, end = f"<!-- generated: {name} -->", "<!-- end -->"
    before, _, rest = page.read_text().partition(start)
    after = rest.partition(end)[2]
    return "\n".join([f"{before}{start}", "", *lines, "", f"{end}{after}"])


PRICE = """
### What it costs, and how to pay less

With m members the price is that of m + 1 trainings, and m forward passes at every step of the student: a forward pass is
about a third of a training step, so eight members, written plainly, are nearly twelve trainings. On a GPU flipguard makes
{least} to {most} of them, with `machine.compile=parts`
and nothing given up but rounding ([step by step](results/ensembles.md)). These options lower the price further. Each changes
what the student follows, but for `--fuse`, so keep the control beside it.

| option | what is saved | what it gives up | measured against eight members |
|---|---|---|---|
| `members=4` | half of the members, and of their forward passes | an ensemble of fewer varies more from seed to seed. Try this first: the members stay finished, and independent of each other | {members} |
| `one_phase=true` | the forward passes, and the wait: members and student are one loop | finished members: for much of the training the student follows an ensemble that knows as little as it does. **Not for short runs** | {one_phase} |
| `reuse=4` | the training of four members, update after update | an ensemble of its own: it is partly that of the model before | {reuse} |
| [`views=10`](#stored-views), or how many there are epochs for | all forward passes but so many a sample, once for all students | fresh augmentations in every epoch | {views} |
| `--fuse auto`, as it is | time on a GPU that a single member does not fill: they are one network; on a CPU they train side by side | nothing, to rounding | |

NFR is the negative flip rate after an old model that ELODI trained too; more of it is worse, and so is more error. MNIST-1D
is of ten seeds and 100 epochs, CIFAR-100 of three seeds and 20 epochs. What it is on your task only your task says:
[all that was measured](results/cheaper.md).
"""
PAYING_LESS = """

**In one phase** every member learns the task on the student's own batches, and the student is drawn to the mean of what they
say in that same pass. No gradient goes from the student to a member or between members: each ends where it would
alone on these batches, with clipping and weight decay of its own. They answer as they learn, that is with dropout, and with batch
normalisation by the batch's statistics; a second pass in eval mode would cost what is saved here.

In short runs it fails: the members then know as little as the student, which follows their mistakes, and both tasks above
were made worse by more than two points of error. Three epochs only show the command; take it where training is long, and
beside the control.

```console
$ flipguard train --method elodi --set options.members=4 --set options.one_phase=true --set recipe.epochs=3 --out runs/once
```

All members have to fit into memory at once. They are saved with the state that `--resume` goes on from, and end with the
run: they are no runs of their own, so no other student can use them and no update can take them over. The loss
`members_sum` in `history.jsonl` is what is minimised, the sum of the members' losses. Refused beside it are `guides`,
another `guide` than homogeneous, `online=false`, `views`, `reuse`, `fine_tune` (members that begin alike and see the
same batches stay alike) and precision 16-mixed.

**In a chain of updates** `reuse=n` takes n of the members over from the ensemble of the one `--old`, and trains only the
others.

```console
$ flipguard train --method elodi --set options.members=4 --set recipe.epochs=3 --out runs/v1
$ flipguard train --method elodi --set options.members=4 --set options.reuse=2 --old runs/v1 --seed 2 \\
    --set recipe.epochs=3 --out runs/v2
```

Members that are taken over stay as they are. They must know the same classes, but may be of the old architecture, and may
have seen less data: the student is then drawn to a partly older ensemble, so expect it to stay nearer to old, and to gain
less from what is new. `run.json` lists all members, the new ones first; `reuse` takes the first of that list, so that with
up to half of the members reused none serves in more than two updates. Runs and their members are moved together: the list
is of relative paths.
"""
STORED_VIEWS = """
### Stored views

At every step the student asks the whole ensemble about its augmented inputs. With `views=V` the ensemble is asked V times
a sample instead, once for all students: what it says goes to `views/` beside the runs, and epoch e of a student shows view
e % V, augmented as it was for the ensemble. A step then asks no ensemble. Where nothing is augmented, as
with texts, one view says all: the student is that of the ensemble asked at every step, up to the rounding of stored logits.

```console
$ flipguard train --model mlp:hidden=64 --method elodi --set options.members=2 --set options.views=2 \\
    --set recipe.epochs=4 --set recipe.augment=shift-scale-noise --out runs/first
$ flipguard train --model mlp:hidden=64 --method elodi --set options.members=2 --set options.views=2 \\
    --set recipe.epochs=4 --set recipe.augment=shift-scale-noise --set options.alpha=0.5 --out runs/second
```

The second student finds the views of the first. The seed of the augmentation is the members' own: students of any seed
share the views of the same members, for instance of those that are given as `guides`. A table takes 2 bytes a view, sample
and class: 8 views of CIFAR-100 76 MiB, of ImageNet 19 GiB, and 0.8 GiB with `views_top=20`. It is written part by part and
checked when it is opened: a run that was killed goes on with it, and a damaged part is computed again.
"""


def _elodi_notes() -> str:
    """What is to be known of the price of ELODI, with what was measured."""
    least, most = ensemble_pages.on_a_gpu()
    price = PRICE.format(
        least=least,
        most=most,
        members=ensemble_pages.measured("members=4"),
        one_phase=ensemble_pages.measured("one phase"),
        reuse=ensemble_pages.measured("reuse=4"),
        views=ensemble_pages.measured("views=10", "views=5"),
    )
    return price + PAYING_LESS + STORED_VIEWS


NOTES = {"elodi": _elodi_notes}


def methods_page() -> str:
    """A card a method."""
    from flipguard.methods import METHODS

    lines = [
        "# Methods",
        "",
        "What `flipguard train --method` understands; options are set by `--set options.NAME=VALUE`.",
        "`codistill-skl+entropy` and `codistill-skl+skl` add a regulariser. The formulas are on the",
        "[cards of the losses](losses.md).",
        "",
        "| method | | paper |",
        "|---|---|---|",
    ]
    for method in METHODS.values():
        lines.append(f"| [`{method.name}`](#{method.name}) | {method.sentence} | {method.paper} |")
    for method in METHODS.values():
        lines += [
            "",
            f"## `{method.name}`",
            "",
            method.sentence,
            "",
            f"- **Paper.** {method.paper}",
        ]
        if method.needs:
            lines.append(f"- **Needs.** {method.needed()}")
        for option in method.options:
            others = f" One of {', '.join(option.choices)}." if option.choices else ""
            lines.append(f"- `{option.name} = {option.default!r}`: {option.sentence}{others}")
        if method.name in NOTES:
            lines += NOTES[method.name]().rstrip().splitlines()
    return "\n".join(lines) + "\n"


PAGES = {
    "methods.md": methods_page,
    "losses.md": losses_page,
    "metrics.md": metrics_page,
    "results/examples.md": examples_page,
    "results/demo.md": result_pages.demo_page,
    "results/report.md": result_pages.report_page,
    "results/cifar.md": training_pages.cifar_page,
    "results/texts.md": training_pages.texts_page,
    "results/ensembles.md": ensemble_pages.ensembles_page,
    "results/cheaper.md": ensemble_pages.cheaper_page,
    **{
        f"images/cheaper-{name}.svg": partial(ensemble_pages.cheaper_chart, name)
        for name in ensemble_pages.cheaper_documents()
    },
    "results/studies.md": study_pages.overview_page,
    **{
        f"results/studies/{name}.md": partial(study_pages.study_page, name)
        for name in study_pages.results()
    },
    **{
        study_pages.picture_of(name): partial(study_pages.study_chart, name)
        for name in study_pages.results()
    },
    "results/losses.md": loss_costs_page,
    "results/evidence.md": evidence_page,
    "results/calibration.md": calibration_page,
    "guides/choose.md": choose_page,
    "large-data.md": large_data_page,
    "api/index.md": api_pages.index_page,
    **{f"api/{name}.md": partial(api_pages.module_page, name) for name in api_pages.modules()},
    **{
        f"images/terminal-{name}.svg": partial(pictures.terminal, name)
        for name in pictures.COMMANDS
    },
}


def main() -> None:
    """Writes the pages, or checks them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for name, render in PAGES.items():
        path, text = DOCS / name, render()
        if options.check:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"docs/{name}")
    if stale:
        sys.exit(f"Out of date: {', '.join(stale)}; run `make docs`.")


if __name__ == "__main__":
    main()
