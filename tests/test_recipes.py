"""The recipes of CONTRIBUTING.md, each carried out in a copy of the tree.

A recipe adds a thing to exactly the files that CONTRIBUTING.md names, and its name to the lists in
tests. Then the tests run that fail while a file lacks it. No recipe may need more files than its
budget.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "benchmarks", "README.md", "CHANGELOG.md", "pyproject.toml")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A new file, or text at the end of a file, or behind the first occurrence of `after` in it."""

    path: str
    text: str
    after: str = ""

    def apply(self, root: Path) -> None:
        file = root / self.path
        whole = file.read_text(encoding="utf-8") if file.exists() else ""
        assert self.after in whole, f"{self.path} has no {self.after!r}"
        head, found, tail = whole.partition(self.after) if self.after else (whole, "", "")
        file.write_text(head + found + self.text + tail, encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """`files` and `lists` are those that CONTRIBUTING.md names; `budget` is the most files."""

    what: str
    budget: int
    files: Sequence[Edit]
    lists: Sequence[Edit] = ()
    page: str = ""  # a generated page, rendered anew
    tests: Sequence[str] = ()
    selected: str = ""  # the tests of these files whose names contain it
    command: str = ""  # Python that must end well


METRIC = Recipe(
    what="metric",
    budget=2,
    files=[
        Edit(
            path="src/flipguard/metrics.py",
            after="METRICS: dict[str, Metric] = {\n    metric.name: metric\n    for metric in (\n",
            text="""\
        Metric(
            name="agreement",
            sentence="How often the two models predict the same class.",
            formula="same_labels / n",
            needs=inputs(),
            better="higher",
            kind=RateKind(lambda c: c.rows - c.different, lambda c: c.rows),
            use="As churn.",
            paper="none",
            pitfalls="It is 1 - churn.",
        ),
""",
        ),
        Edit(
            path="tests/plain.py",
            after="BINS = 15\nNAN = math.nan\n",
            text="""

def agreement(case: Case) -> float:
    return ratio(sum(row.old == row.new for row in case.rows), len(case.rows))
""",
        ),
        Edit(
            path="tests/plain.py",
            after="    function.__name__: function\n    for function in (\n",
            text="        agreement,\n",
        ),
    ],
    lists=[
        Edit(path="tests/test_metrics.py", after="NAMES = [\n", text='    "agreement",\n'),
        Edit(
            path="tests/test_counts.py",
            after="BY_HAND = {\n",
            text='    "agreement": (92 / 135, 135),\n',
        ),
    ],
    page="metrics",
    tests=[
        "tests/test_metrics.py::test_no_metric_is_forgotten",
        "tests/test_metrics.py::test_every_metric_is_its_plain_definition",
        "tests/test_counts.py",
        "tests/test_pages.py",
    ],
)

LOSS = Recipe(
    what="loss",
    budget=3,
    files=[
        Edit(
            path="src/flipguard/losses/echo.py",
            text='''\
"""The echo loss: the naive congruence loss under another name."""

from __future__ import annotations

from typing import Any, ClassVar

from flipguard.losses.base import Logits, Loss, LossCard, OldLogits, Target, options_of
from flipguard.losses.dissonance import NaiveCongruence


class Echo(NaiveCongruence):
    """The echo loss (no paper): cross-entropy again on what old gets right.

    The term is the mean over the batch of ``-[old right] log p_new(target)``.
    """

    card: ClassVar[LossCard] = LossCard(
        section="Pull towards the old model",
        formula="1/N sum_i -[old right] log p",
        use="Never.",
        paper="none",
        pitfalls="It is NaiveCongruence.",
    )


@options_of(Echo)
def echo(*, new: Logits, old: OldLogits, target: Target, **options: Any) -> Loss:
    """``-[old right] log p_new(target)`` per sample. See :class:`Echo`."""
    return Echo(**options).forward(new=new, old=old, target=target)
''',
        ),
        Edit(
            path="src/flipguard/losses/__init__.py",
            after="from flipguard.losses.inhibition import LogitDifferenceInhibition, "
            "logit_difference_inhibition\n",
            text="from flipguard.losses.echo import Echo, echo\n",
        ),
        Edit(
            path="src/flipguard/losses/__init__.py",
            after="__all__ = [\n",
            text='    "Echo",\n    "echo",\n',
        ),
        Edit(
            path="tests/losses/transcription.py",
            after="new_error = naive_congruence\n",
            text="echo = naive_congruence\n",
        ),
    ],
    lists=[
        Edit(
            path="tests/losses/table.py",
            after="ROWS = {\n",
            text="""\
    "echo": Loss(
        name="echo",
        module="Echo",
        definition=plain.echo,
        draw=of_logits("old", no_options, target=True),
        fixed=("old",),
        target=True,
        soft=True,
        matches=True,
    ),
""",
        ),
    ],
    page="losses",
    tests=["tests/losses/test_transcription.py", "tests/test_pages.py"],
    selected="forgotten or echo or a_page_shows",
    command="from pages.api import module_page; assert 'Echo' in module_page('flipguard.losses')",
)

METHOD = Recipe(
    what="method",
    budget=2,
    files=[
        Edit(
            path="src/flipguard/methods/echo.py",
            text='''\
"""`echo`: the naive congruence loss as a method."""

from __future__ import annotations

from flipguard.methods.base import WEIGHT, Method
from flipguard.methods.needs import Needs
from flipguard.methods.objective import BuildContext, Objective, pull_to_old


def _build_echo(context: BuildContext) -> Objective:
    from flipguard.losses import NaiveCongruence

    return pull_to_old(context, "echo", lambda old: NaiveCongruence(classes=old.classes))


ECHO = Method(
    name="echo",
    sentence="New's loss once more on what old gets right.",
    paper="none",
    build=_build_echo,
    options=(WEIGHT,),
    needs=lambda _: Needs(old=True),
)
''',
        ),
        Edit(
            path="src/flipguard/methods/registry.py",
            after="from flipguard.methods.elodi import ELODI\n",
            text="from flipguard.methods.echo import ECHO\n",
        ),
        Edit(path="src/flipguard/methods/registry.py", after="_ROWS = (\n", text="    ECHO,\n"),
    ],
    lists=[
        Edit(path="tests/methods/test_registry.py", after="PROMISED = [\n", text='    "echo",\n'),
        Edit(
            path="tests/methods/cases.py",
            after="        for name, loss in (\n",
            text='            ("echo", plain.naive_congruence),\n',
        ),
    ],
    page="methods",
    tests=[
        "tests/methods/test_objectives.py",
        "tests/methods/test_registry.py",
        "tests/test_pages.py",
    ],
    selected="forgotten or echo or a_page_shows or every_method_has",
)

DATA_SET = Recipe(
    what="data set",
    budget=2,
    files=[
        Edit(
            path="src/flipguard/data/coins.py",
            text='''\
"""Coins: vectors of one number, whose sign is the class."""

from __future__ import annotations

import torch

from flipguard.data.dataset import ArraySplit, DataSet
from flipguard.specs import Options


def load_coins(options: Options) -> DataSet:
    """Return 100 coins to learn and 50 to test."""
    options.finish()
    drawn = torch.randn(150, 1, generator=torch.Generator().manual_seed(1))
    targets = (drawn[:, 0] > 0).long()
    return DataSet.of(
        name="coins",
        kind="vector",
        class_names=["tails", "heads"],
        train=ArraySplit(inputs=drawn[:100], targets=targets[:100]),
        test=ArraySplit(inputs=drawn[100:], targets=targets[100:]),
    )
''',
        ),
        Edit(
            path="src/flipguard/data/registry.py",
            after="from flipguard.data.cifar import load_cifar\n",
            text="from flipguard.data.coins import load_coins\n",
        ),
        Edit(
            path="src/flipguard/data/registry.py",
            after="ROWS = (\n",
            text="""\
    KnownData(
        name="coins",
        kind="vector",
        classes=2,
        sentence="Numbers whose sign is the class.",
        load=lambda options, _: load_coins(options),
    ),
""",
        ),
    ],
    lists=[
        Edit(
            path="tests/data/test_public.py",
            after="assert list(DATA_SETS) == [\n",
            text='        "coins",\n',
        )
    ],
    tests=["tests/data/test_public.py"],
    selected="table_of_data_sets or cannot_be_changed or torch_and_numpy",
    command="from flipguard.data import load_data; assert len(load_data('coins').test) == 50",
)

STUDY = Recipe(
    what="study",
    budget=1,
    files=[
        Edit(
            path="src/flipguard/studies/catalog/other.table1.toml",
            text="""\
roles = { "ResNet-56" = "large" }

[[rows]]
match = { method = ["none", "entropy"] }
old = "like new"

[table]
title = "Two rows."
section = "1"
data = "CIFAR-10"
scenario = "same"
old = "ResNet-56"
new = "ResNet-56"
unit = "%"
metrics = ["accuracy", "churn"]

  [[table.row]]
  label = "plain"
  method = "none"
  cells = [[94.0, 0.1], [5.8, 0.1]]

  [[table.row]]
  label = "entropy"
  method = "entropy"
  cells = [[94.1, 0.1], [5.0, 0.1]]
""",
        ),
    ],
    tests=["tests/studies/test_catalog.py"],
    selected="other.table1 or every_table_has or smallest_scale",
    command="from flipguard.studies.read_study import study_of; "
    "assert len(study_of('other.table1').lines) == 2",
)

FILE_FORMAT = Recipe(
    what="file format",
    budget=2,
    files=[
        Edit(
            path="src/flipguard/predictions/formats.py",
            after="FORMATS: dict[str, str] = {\n",
            text='    ".psv": "psv",\n',
        ),
        Edit(
            path="src/flipguard/predictions/formats.py",
            after="SEPARATORS = {",
            text='"psv": "|", ',
        ),
    ],
    lists=[
        Edit(path="tests/test_reading.py", after="TEXT = (", text='".psv", '),
        Edit(
            path="tests/test_reading.py",
            after='    separator = "," if suffix == ".csv" else ',
            text='"|" if suffix == ".psv" else ',
        ),
        Edit(path="tests/test_write.py", after="for kind in (", text='".psv", '),
        Edit(path="tests/test_write.py", after="suffix.startswith((", text='".psv", '),
    ],
    tests=["tests/test_reading.py", "tests/test_write.py"],
    selected="psv",
    command="from flipguard.predictions.formats import TEXT_FORMATS, suffixes_of; "
    "assert '.psv' in suffixes_of(TEXT_FORMATS)",
)

OUTPUT = Recipe(
    what="output",
    budget=2,
    files=[
        Edit(
            path="src/flipguard/render/line.py",
            text='''\
"""A comparison as one line of text."""

from __future__ import annotations

from flipguard.comparison import Comparison


def comparison_line(result: Comparison) -> str:
    """Return the negative flip rate."""
    return f"negative_flip_rate {result['negative_flip_rate'].value:.4f}\\n"
''',
        ),
        Edit(
            path="src/flipguard/cli/output.py",
            after="def _flips(finished: Finished) -> pl.DataFrame:\n"
            "    return finished.result.flips()\n",
            text="""

def _line(finished: Finished) -> str:
    from flipguard.render.line import comparison_line

    return comparison_line(finished.result)
""",
        ),
        Edit(
            path="src/flipguard/cli/output.py",
            after="OUTPUTS = (\n",
            text="""\
    Output(
        flag="line",
        help="Write one line; - is standard output.",
        content=_line,
        write=write_text,
    ),
""",
        ),
    ],
    tests=["tests/test_cli.py"],
    selected="help",
    command="""
import pathlib, subprocess, sys
pathlib.Path('a.csv').write_text('id,target,label\\n1,0,0\\n2,1,1\\n')
pathlib.Path('b.csv').write_text('id,target,label\\n1,0,1\\n2,1,1\\n')
pathlib.Path('gate.toml').write_text('[[rule]]\\nmetric = "churn"\\nmax = 0.99\\n')
for command, policy in (('compare', []), ('gate', ['--policy', 'gate.toml'])):
    arguments = ['a.csv', 'b.csv', *policy, '--line', 'out.txt']
    subprocess.run([sys.executable, '-m', 'flipguard', command, *arguments], check=True)
    out = pathlib.Path('out.txt')
    assert out.read_text() == 'negative_flip_rate 0.5000\\n'
    out.unlink()
""",
)

RECIPES = (METRIC, LOSS, METHOD, DATA_SET, STUDY, FILE_FORMAT, OUTPUT)


def named_files(what: str, column: int) -> list[str]:
    """The files that CONTRIBUTING.md names for a thing, as patterns."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    page = page.partition("## How to add something")[2]
    row = re.search(rf"^\| {what} \| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
    assert row is not None, what
    return [re.sub("<.*?>", "*", name) for name in re.findall("`([^` ]+/[^` ]+)`", row[column])]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    return root


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.what for recipe in RECIPES])
def test_the_files_of_a_recipe_are_those_that_the_page_names(recipe: Recipe) -> None:
    for column, edits in ((1, recipe.files), (2, recipe.lists)):
        files, patterns = {edit.path for edit in edits}, named_files(recipe.what, column)
        assert len(files) == len(patterns)
        for pattern in patterns:
            assert any(Path(file).match(pattern) for file in files), pattern
    assert len(named_files(recipe.what, 1)) <= recipe.budget


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.what for recipe in RECIPES])
def test_a_recipe_is_complete(recipe: Recipe, tree: Path) -> None:
    for edit in (*recipe.files, *recipe.lists):
        edit.apply(tree)
    paths = os.pathsep.join([str(tree / "src"), str(tree / "docs")])
    environment = {**os.environ, "PYTHONPATH": paths}

    def python(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    if recipe.page:
        name = recipe.page
        render = f"import pages.{name} as page, pathlib; text = page.{name}_page(); "
        python("-c", f"{render}pathlib.Path('docs/{name}.md').write_text(text)")
    if recipe.command:
        python("-c", recipe.command)
    selected = ["-k", recipe.selected] if recipe.selected else []
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow"]
    python("-m", "pytest", *options, *recipe.tests, *selected)
