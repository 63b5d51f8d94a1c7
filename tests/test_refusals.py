"""What cannot be compared is refused in one sentence: file, column, ids, and the way out."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from flipguard import InputError, Predictions, compare, read_predictions

IDS = ["a", "b", "c", "d"]
TARGETS = ["x", "y", "x", "y"]
LABELS = ["x", "y", "y", "y"]
NAN, INF = float("nan"), float("inf")


def good(**changes: Any) -> dict[str, Any]:
    """A sound table of four rows; None takes a column away."""
    columns = {"id": IDS, "target": TARGETS, "label": LABELS, **changes}
    return {name: values for name, values in columns.items() if values is not None}


def scored(first: list[float], second: list[float], **changes: Any) -> dict[str, Any]:
    """A sound table with the logits of classes x and y."""
    return good(label=None, logit_x=first, logit_y=second, **changes)


def chances(rows: list[list[float]], **changes: Any) -> dict[str, Any]:
    return good(label=None, probabilities=rows, **changes)


SOUND_LOGITS = scored([1.0, 2.0, 3.0, 4.0], [0.0, 3.0, 4.0, 5.0])
SOUND_CHANCES = [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0], [0.1, 0.9]]
SHUFFLED = ["d", "b", "c", "a"]


@dataclass(frozen=True)
class Refused:
    """Two tables, or more, and the sentence that refuses them."""

    what: str
    sentence: str
    old: dict[str, Any] = field(default_factory=good)
    new: dict[str, Any] = field(default_factory=good)
    controls: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    suffix: str = ".parquet"


def last(values: list[float], bad: float) -> list[float]:
    return [*values[:-1], bad]


TABLES = [
    # -- ids ------------------------------------------------------------------------------------
    Refused(
        "a duplicate id in old, rows aligned and sorted",
        "{old} has more than one row for id 'b' in column 'id'; keep one row per sample, or name "
        "another column with `id=`.",
        old=good(id=["a", "b", "b", "d"]),
        new=good(id=["a", "b", "b", "d"]),
    ),
    Refused(
        "a duplicate id, rows aligned and unsorted",
        "{old} has more than one row for id 'a', 'd' in column 'id'; keep one row per sample, or "
        "name another column with `id=`.",
        old=good(id=["d", "a", "d", "a"]),
        new=good(id=["d", "a", "d", "a"]),
    ),
    Refused(
        "a duplicate id in old, rows shuffled",
        "{old} has more than one row for id 'b' in column 'id'; keep one row per sample, or name "
        "another column with `id=`.",
        old=good(id=["a", "b", "b", "d"], target=None),
        new=good(id=SHUFFLED),
    ),
    Refused(
        "a duplicate id in new, rows shuffled",
        "{new} has more than one row for id 'c' in column 'id'; keep one row per sample, or name "
        "another column with `id=`.",
        new=good(id=["d", "c", "c", "a"], target=None),
    ),
    Refused(
        "a duplicate id in a control",
        "{control0} has more than one row for id 'c' in column 'id'; keep one row per sample, or "
        "name another column with `id=`.",
        controls=(good(id=["d", "c", "c", "a"], target=None),),
    ),
    Refused(
        "a duplicate id next to scores",
        "{new} has more than one row for id 'c' in column 'id'; keep one row per sample, or name "
        "another column with `id=`.",
        old=SOUND_LOGITS,
        new=scored([1.0] * 4, [0.0] * 4, id=["d", "c", "c", "a"], target=None),
    ),
    Refused(
        "many duplicate ids",
        "{old} has more than one row for id 0, 1, 2 and 7 more in column 'id'; keep one row per "
        "sample, or name another column with `id=`.",
        old={"id": [*range(10), *range(10)], "label": ["x"] * 20},
        new={"id": list(range(20)), "label": ["x"] * 20},
    ),
    Refused(
        "duplicate ids of a renamed column",
        "{old} has more than one row for id 'b' in column 'key'; keep one row per sample, or name "
        "another column with `id=`.",
        old={"key": ["a", "b", "b"], "label": ["x"] * 3},
        new={"key": ["a", "b", "b"], "label": ["x"] * 3},
        options={"id": "key"},
    ),
    Refused(
        "no id in common",
        "No id is in every file: {old} has ids such as 'a', 'b', {new} has ids such as 'p', 'q'; "
        "check that both are of the same test set and that `id=` names the right column.",
        new=good(id=["p", "q", "r", "s"]),
    ),
    Refused(
        "no id in common, though rows on one side only may be dropped",
        "No id is in every file: {old} has ids such as 'a', 'b', {new} has ids such as 'p', 'q'; "
        "check that both are of the same test set and that `id=` names the right column.",
        new=good(id=["p", "q", "r", "s"]),
        options={"on_missing": "drop"},
    ),
    Refused(
        "ids of old that new lacks",
        "{old} has 2 ids that {new} lacks: 'a', 'c'; give the same samples in every file, "
        "or leave these out with `on_missing='drop'`.",
        new={"id": ["d", "b"], "label": ["x", "y"]},
    ),
    Refused(
        "an id of new that old lacks",
        "{new} has 1 id that {old} lacks: 'e'; give the same samples in every file, "
        "or leave these out with `on_missing='drop'`.",
        new={"id": [*IDS, "e"], "label": [*LABELS, "x"]},
    ),
    Refused(
        "ids that either file lacks",
        "{old} has 1 id that {new} lacks: 'd', and {new} has 4 ids that {old} lacks: 'e', 'f', 'g' "
        "and 1 more; give the same samples in every file, or leave these out with "
        "`on_missing='drop'`.",
        new={"id": [*IDS[:3], *"efgh"], "label": ["x"] * 7},
    ),
    Refused(
        "an id that a control lacks",
        "{old} has 1 id that {control0} lacks: 'd'; give the same samples in every file, "
        "or leave these out with `on_missing='drop'`.",
        controls=({"id": IDS[:3], "label": LABELS[:3]},),
    ),
    Refused(
        "ids on one side only, next to scores",
        "{old} has 1 id that {new} lacks: 'd'; give the same samples in every file, "
        "or leave these out with `on_missing='drop'`.",
        old=SOUND_LOGITS,
        new={"id": IDS[:3], "label": LABELS[:3]},
    ),
    Refused(
        "very many ids on one side only",
        "{old} has 996 ids that {new} lacks: 4, 5, 6 and 993 more; give the same samples in every "
        "file, or leave these out with `on_missing='drop'`.",
        old={"id": list(range(1000)), "label": ["x"] * 1000},
        new={"id": list(range(4)), "label": ["x"] * 4},
    ),
    Refused(
        "a missing id, rows aligned",
        "{old} has no id in column 'id' at row 3; give every row another id.",
        old=good(id=["a", "b", None, "d"]),
        new=good(id=["a", "b", None, "d"]),
    ),
    Refused(
        "a missing id, rows shuffled",
        "{new} has no id in column 'id' at row 2; give every row another id.",
        new=good(id=["d", None, "c", "a"], target=None),
    ),
    Refused(
        "a missing id in a file of text",
        "{new} has no id in column 'id' at row 2; give every row another id.",
        new=good(id=["d", None, "c", "a"], target=None),
        suffix=".csv",
    ),
    # -- targets and labels ---------------------------------------------------------------------
    Refused(
        "targets that disagree, rows aligned",
        "{old} and {new} disagree on the target of id 'a' ('x', 'y'), 'c' ('x', 'y'); "
        "a sample has one true class: correct the wrong file, or leave the target out of it.",
        new=good(target=["y", "y", "y", "y"]),
    ),
    Refused(
        "targets that disagree, rows shuffled",
        "{old} and {new} disagree on the target of id 'a' ('x', 'y'), 'd' ('y', 'x'); "
        "a sample has one true class: correct the wrong file, or leave the target out of it.",
        new=good(id=SHUFFLED, target=["x", "y", "x", "y"]),
    ),
    Refused(
        "targets that disagree next to scores",
        "{old} and {new} disagree on the target of id 'a' ('x', 'y'); "
        "a sample has one true class: correct the wrong file, or leave the target out of it.",
        old=SOUND_LOGITS,
        new={**SOUND_LOGITS, "target": ["y", "y", "x", "y"]},
    ),
    Refused(
        "a control's targets disagree",
        "{old} and {control0} disagree on the target of id 'a' ('x', 'y'); "
        "a sample has one true class: correct the wrong file, or leave the target out of it.",
        controls=(good(target=["y", "y", "x", "y"]),),
    ),
    Refused(
        "a control and new disagree where old has no targets",
        "{new} and {control0} disagree on the target of id 'a' ('x', 'y'); "
        "a sample has one true class: correct the wrong file, or leave the target out of it.",
        old=good(target=None),
        controls=(good(target=["y", "y", "x", "y"]),),
    ),
    Refused(
        "a control and new disagree where old has no target in that row",
        "{new} and {control0} disagree on the target of id 'a' ('x', 'y'); "
        "a sample has one true class: correct the wrong file, or leave the target out of it.",
        old=good(target=[None, "y", "x", "y"]),
        controls=(good(target=["y", "y", "x", "y"]),),
    ),
    Refused(
        "more disagreements than are named",
        "{old} and {new} disagree on the target of id 0 ('x', 'y'), 1 ('x', 'y'), 2 ('x', 'y') "
        "and 5 more; a sample has one true class: correct the wrong file, or leave the target out "
        "of it.",
        old={"id": list(range(8)), "label": ["x"] * 8, "target": ["x"] * 8},
        new={"id": list(range(8)), "label": ["x"] * 8, "target": ["y"] * 8},
    ),
    Refused(
        "a missing label",
        "{new} has no predicted class in column 'label' for id 'b'; give every row a label, or "
        "leave the row out.",
        new=good(label=["x", None, "y", "y"]),
    ),
    Refused(
        "a missing label, rows shuffled",
        "{new} has no predicted class in column 'label' for id 'b', 'c'; give every row a label, "
        "or leave the row out.",
        new=good(id=SHUFFLED, target=None, label=["x", None, None, "y"]),
    ),
    Refused(
        "a missing label in a control",
        "{control1} has no predicted class in column 'label' for id 'd'; give every row a label, "
        "or leave the row out.",
        controls=(good(), good(label=["x", "y", "y", None])),
    ),
    Refused(
        "a missing label of a model with scores",
        "{old} has no predicted class in column 'label' for id 'd'; give every row a label, or "
        "leave the row out.",
        old={**SOUND_LOGITS, "label": ["x", "y", "y", None]},
    ),
    Refused(
        "fractions as labels",
        "{new} has fractional numbers in column 'label' (2.5), for id 'b', but classes are names "
        "or integers; this looks like a score or a regression output: name the column of classes "
        "with `label=`.",
        old=good(target=None, label=[1, 2, 3, 4]),
        new=good(target=None, label=[1.0, 2.5, 3.0, 4.0]),
    ),
    Refused(
        "fractions as targets, rows shuffled",
        "{new} has fractional numbers in column 'target' (2.5), for id 'b', but classes are names "
        "or integers; this looks like a score or a regression output: name the column of classes "
        "with `target=`.",
        old=good(target=None, label=[1, 2, 3, 4]),
        new=good(id=SHUFFLED, target=[1.0, 2.5, 3.0, 4.0], label=[1, 2, 3, 4]),
    ),
    Refused(
        "infinite labels",
        "{new} has fractional numbers in column 'label' (inf, 1e+300), for id 'a', 'd', but "
        "classes are names or integers; this looks like a score or a regression output: name the "
        "column of classes with `label=`.",
        old=good(target=None, label=[1, 2, 3, 4]),
        new=good(target=None, label=[INF, 2.0, 3.0, 1e300]),
    ),
    Refused(
        "labels that are no scalars",
        "{new} has a column 'label' of type List(Int64), which can be neither an id nor a class; "
        "expected names or integers.",
        new=good(label=[[1], [2], [3], [4]]),
    ),
    # -- scores ---------------------------------------------------------------------------------
    *[
        Refused(
            f"{bad} among the logits of {side}",
            f"{{{side}}} has NaN or infinite logits for id 'd'; correct the row, or leave it out.",
            **{side: scored([1.0, 2.0, 3.0, 4.0], last([0.0, 3.0, 4.0, 5.0], bad))},
            **{other: SOUND_LOGITS},
        )
        for bad in (NAN, INF, -INF)
        for side, other in (("old", "new"), ("new", "old"))
    ],
    *[
        Refused(
            f"{bad} among the logits of {side}, the other of labels only",
            f"{{{side}}} has NaN or infinite logits for id 'd'; correct the row, or leave it out.",
            **{side: scored([1.0, 2.0, 3.0, 4.0], last([0.0, 3.0, 4.0, 5.0], bad))},
        )
        for bad in (NAN, INF, -INF)
        for side in ("old", "new")
    ],
    *[
        Refused(
            f"{bad} among the logits of {side}, which have different classes",
            f"{{{side}}} has NaN or infinite logits for id 'd'; correct the row, or leave it out.",
            **{side: {**SOUND_LOGITS, "logit_z": [0.0, 0.0, 0.0, bad]}},
            **{other: SOUND_LOGITS},
        )
        for bad in (NAN, INF, -INF)
        for side, other in (("old", "new"), ("new", "old"))
    ],
    *[
        Refused(
            f"{bad} among the logits of new, rows shuffled",
            "{new} has NaN or infinite logits for id 'a'; correct the row, or leave it out.",
            old=SOUND_LOGITS,
            new=scored([1.0] * 4, [0.0, 0.0, 0.0, bad], id=SHUFFLED, target=None),
        )
        for bad in (NAN, INF, -INF)
    ],
    Refused(
        "minus infinity on both sides, which would cancel out",
        "{old} has NaN or infinite logits for id 'd'; correct the row, or leave it out.",
        old=scored([1.0, 2.0, 3.0, 4.0], [0.0, 3.0, 4.0, -INF]),
        new=scored([1.0, 2.0, 3.0, 4.0], [0.0, 3.0, 4.0, -INF]),
    ),
    Refused(
        "NaN among the logits of a control",
        "{control0} has NaN or infinite logits for id 'd'; correct the row, or leave it out.",
        controls=(scored([1.0, 2.0, 3.0, 4.0], [0.0, 3.0, 4.0, NAN]),),
    ),
    *[
        Refused(
            f"{bad} among probabilities",
            "{new} has NaN or infinite probabilities for id 'b'; correct the row, or leave it out.",
            old=good(target=[0, 1, 0, 1], label=[0, 1, 0, 1]),
            new=chances([[0.5, 0.5], [bad, 1.0], [0.5, 0.5], [0.5, 0.5]], target=None),
        )
        for bad in (NAN, INF, -INF)
    ],
    Refused(
        "probabilities that do not sum to 1",
        "{new} has probabilities that sum to 1.2 instead of 1, for id 'c'; give softmax outputs, "
        "or call them logits if they are not normalised.",
        old=good(target=[0, 1, 0, 1], label=[0, 1, 0, 1]),
        new=chances([[0.5, 0.5], [0.5, 0.5], [0.5, 0.7], [0.5, 0.5]], target=None),
    ),
    Refused(
        "probabilities below 0",
        "{old} has a probability below 0 (-0.25), for id 'a'; give softmax outputs, or call them "
        "logits if they are not normalised.",
        old=chances([[1.25, -0.25], *SOUND_CHANCES[1:]], target=[0, 1, 0, 1]),
        new=chances(SOUND_CHANCES, target=None),
    ),
    Refused(
        "rows with different numbers of scores",
        "{new} has 3 scores in column 'probabilities' where the first row has 2, for id 'c'; give "
        "every row one score per class.",
        old=chances(SOUND_CHANCES, target=None),
        new=chances([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5, 0.0], [1.0, 0.0]], target=None),
    ),
    Refused(
        "a row without scores",
        "{new} has no scores in column 'probabilities' where the first row has 2, for id 'b'; give "
        "every row one score per class.",
        old=chances(SOUND_CHANCES, target=None),
        new=chances([[0.5, 0.5], None, [0.5, 0.5], [1.0, 0.0]], target=None),
    ),
    Refused(
        "a first row without scores",
        "{new} has no scores in the first row of column 'probabilities'; give every row one score "
        "per class.",
        old=chances(SOUND_CHANCES, target=None),
        new=chances([[], [0.5, 0.5], [0.5, 0.5], [1.0, 0.0]], target=None),
    ),
    Refused(
        "a score missing from a list",
        "{new} has no score for some class, for id 'b'; give every row one score per class.",
        old=chances(SOUND_CHANCES, target=None),
        new=chances([[0.5, 0.5], [None, 1.0], [0.5, 0.5], [1.0, 0.0]], target=None),
    ),
    Refused(
        "a score missing from a column",
        "{new} has no score for some class, for id 'b'; give every row one score per class.",
        old=SOUND_LOGITS,
        new=scored([1.0, None, 3.0, 4.0], [0.0, 3.0, 4.0, 5.0]),
    ),
    Refused(
        "class names on one side only",
        "{old} names the classes of its scores and {new} does not, so they cannot be matched; "
        "name them there too: columns logit_<class> or probability_<class>, or class_names in an "
        "NPZ.",
        old=SOUND_LOGITS,
        new=chances(SOUND_CHANCES, target=None),
    ),
    Refused(
        "targets by name, scores of classes without names",
        "{old} does not name the classes of its scores, so they cannot be matched with 'x', 'y'; "
        "name them: columns logit_<class> or probability_<class>, or class_names in an NPZ.",
        old=chances(SOUND_CHANCES),
        new=good(target=None),
    ),
    Refused(
        "masked logits",
        "The logits of {old} and {new} are 1e+09 apart for id 'b', as masked classes are; leave "
        "masked classes out, or give probabilities.",
        old=SOUND_LOGITS,
        new=scored([1.0, -1e9, 3.0, 4.0], [0.0, 3.0, 4.0, 5.0]),
    ),
    # -- groups ---------------------------------------------------------------------------------
    Refused(
        "a column to group by that is not there",
        "Neither {old} nor {new} has a column 'colour', which `by=` asks for; they have 'id', "
        "'target', "
        "'label'.",
        options={"by": ["colour"]},
    ),
    Refused(
        "a column to group by that is misspelled",
        "Neither {old} nor {new} has a column 'targte', which `by=` asks for; did you mean target? "
        "they have 'id', 'target', 'label'.",
        options={"by": ["targte"]},
    ),
    Refused(
        "a cluster that is not there",
        "Neither {old} nor {new} has a column 'user', which `cluster=` asks for; they have 'id', "
        "'target', "
        "'label'.",
        options={"cluster": "user"},
    ),
    Refused(
        "targets to group by that are not there",
        "Neither {old} nor {new} has a column 'target', which `by=` asks for; they have 'id', "
        "'label'.",
        old=good(target=None),
        new=good(target=None),
        options={"by": ["target"]},
    ),
    Refused(
        "groups that disagree, rows aligned",
        "{old} and {new} disagree on column 'group' of id 'b', 'd', so it cannot group their "
        "rows; leave the column out of one of them.",
        old=good(group=["p", "q", "p", None]),
        new=good(group=["p", "p", "p", "q"]),
        options={"by": ["group"]},
    ),
    Refused(
        "groups that disagree, rows shuffled",
        "{old} and {new} disagree on column 'group' of id 'a', so it cannot group their rows; "
        "leave the column out of one of them.",
        old=good(group=["p", "q", "p", "q"]),
        new=good(id=SHUFFLED, target=None, group=["q", "q", "p", "q"]),
        options={"by": ["group"]},
    ),
    Refused(
        "groups that disagree next to scores",
        "{old} and {new} disagree on column 'group' of id 'b', so it cannot group their rows; "
        "leave the column out of one of them.",
        old={**SOUND_LOGITS, "group": ["p", "q", "p", "q"]},
        new={**SOUND_LOGITS, "group": ["p", "p", "p", "q"]},
        options={"cluster": "group"},
    ),
    # -- options --------------------------------------------------------------------------------
    Refused(
        "a confidence of 95",
        "Expected `confidence=` to be between 0 and 1, but got 95; 0.95 is usual.",
        options={"confidence": 95},
    ),
    Refused(
        "an unknown correction",
        "Expected `correction` to be one of holm, benjamini-hochberg, none, but got 'bonferroni'.",
        options={"correction": "bonferroni"},
    ),
    Refused(
        "an unknown way with missing rows",
        "Expected `on_missing` to be error or drop, but got 'ignore'.",
        options={"on_missing": "ignore"},
    ),
    Refused(
        "an exponent of 0",
        "Expected `exponent=` to be above 0, but got 0.0; 1 is usual.",
        options={"exponent": 0.0},
    ),
    Refused(
        "an unknown engine",
        "Expected `engine` to be one of local, spark, but got 'dask'.",
        options={"engine": "dask"},
    ),
]


def one_sentence(problem: BaseException) -> str:
    """The text of an error, once it is sure to be a sentence for a person."""
    assert type(problem) is InputError, f"{type(problem).__name__}: {problem}"
    text = str(problem)
    assert "\n" not in text
    assert text.endswith(".")
    assert not re.search(r"\.\s+[A-Z]", text.replace("…", "")), f"more than one sentence: {text}"
    return text


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - which one is what is looked at
        action()
    return one_sentence(raised.value)


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.what)
def test_tables_that_cannot_be_compared(case, save):
    options = dict(case.options)
    roles = {role: options.pop(role) for role in ("id", "target", "label") if role in options}
    files = {
        "old": save(f"old{case.suffix}", case.old),
        "new": save(f"new{case.suffix}", case.new),
    }
    for i, control in enumerate(case.controls):
        files[f"control{i}"] = save(f"control{i}{case.suffix}", control)

    def act() -> object:
        tables = {name: read_predictions(path, **roles) for name, path in files.items()}
        old, new = tables.pop("old"), tables.pop("new")
        return compare(old=old, new=new, control=list(tables.values()), **options)

    assert refused(act) == case.sentence.format(**files)


def test_rows_on_one_side_only_can_be_dropped_and_are_counted(save):
    old = read_predictions(save("old.parquet", good(id=["a", "b", "c", "d"])))
    new = read_predictions(
        save("new.csv", {"id": ["e", "d", "b", "f", "g"], "label": ["x", "y", "x", "x", "x"]})
    )
    result = compare(old=old, new=new, on_missing="drop")
    assert (result.rows.matched, result.rows.only_old, result.rows.only_new) == (2, 2, 3)
    assert result.n == 2
    # b: y, old y, new x; d: y, old y, new y.
    assert result["negative_flip_rate"].value == 0.5


def test_rows_on_one_side_only_can_be_dropped_beside_scores(save):
    old = read_predictions(save("old.parquet", SOUND_LOGITS))
    new = read_predictions(
        save(
            "new.parquet", {"id": ["c", "e", "a"], "logit_y": [0.0, 1.0, 0.0], "logit_x": [9.0] * 3}
        )
    )
    result = compare(old=old, new=new, on_missing="drop")
    assert (result.rows.matched, result.rows.only_old, result.rows.only_new) == (2, 2, 1)
    # a: x, old x, new x; c: x, old y, new x.
    assert result["positive_flip_rate"].value == 0.5
    assert result["negative_flip_rate"].value == 0.0
    # a moves from (1, 0) to (9, 0), c from (3, 4) to (9, 0).
    distances = [8.0, (6.0**2 + 4.0**2) ** 0.5]
    assert result["logit_displacement"].value == pytest.approx(sum(distances) / 2, abs=1e-6)


def test_rows_that_only_a_control_lacks_can_be_dropped(save):
    old, new = read_predictions(save("old.csv", good())), read_predictions(save("new.csv", good()))
    control = read_predictions(save("control.csv", {"id": ["a", "z"], "label": ["x", "x"]}))
    result = compare(old=old, new=new, control=control, on_missing="drop")
    assert result.n == 1
    assert (result.rows.matched, result.rows.only_old, result.rows.only_new) == (1, 0, 0)


# -- arrays in memory ------------------------------------------------------------------------------

SCORES = np.array([[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"labels": [1, 2, 3], "targets": [1, 2]},
            "m has arrays of different lengths (target 2, label 3); give one entry per sample in "
            "each.",
        ),
        (
            {"logits": SCORES, "targets": [1, 2, 3]},
            "m has arrays of different lengths (target 3, logits 2); give one entry per sample in "
            "each.",
        ),
        (
            {"logits": SCORES, "class_names": ["a", "b", "c"]},
            "m has logits of 2 classes but 3 class names; give one name per column, in order.",
        ),
        (
            {"probabilities": SCORES, "class_names": ["a"]},
            "m has probabilities of 2 classes but 1 class names; give one name per column, in "
            "order.",
        ),
        (
            {"logits": SCORES, "class_names": ["a", "a"]},
            "m names class 'a' more than once; class names must differ.",
        ),
        (
            {"logits": SCORES, "class_names": ["1", 1.0]},
            "m names class '1' more than once; class names must differ.",
        ),
        (
            {"logits": SCORES[0]},
            "m has logits of shape (2,) and type float64; expected numbers of shape (samples, "
            "classes).",
        ),
        (
            {"logits": np.array([["a", "b"]])},
            "m has logits of shape (1, 2) and type <U1; expected numbers of shape (samples, "
            "classes).",
        ),
        (
            {"logits": np.empty((2, 0))},
            "m has logits without columns; expected at least two classes.",
        ),
        (
            {"labels": [[1, 2], [3, 4]]},
            "m has 'label' of shape (2, 2); expected one value per sample.",
        ),
        (
            {"labels": [1 + 2j, 3j]},
            "m has 'label' of complex values; expected numbers or text.",
        ),
        (
            {"targets": [1, 2]},
            "m has neither predicted labels nor class scores (columns: 'target'); name the column "
            "of predicted classes with `label=`, or of grades with `correct=`, or add logits or "
            "probabilities.",
        ),
        (
            {"labels": [1], "slices": {"target": [1], "label": [2]}},
            "m has a slice called 'label', a name kept for the table itself; rename the slice.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_are_no_predictions(arrays, sentence):
    assert refused(lambda: Predictions.from_arrays(**arrays, name="m")) == sentence


def test_a_frame_that_is_none():
    assert refused(lambda: Predictions.from_frame([1, 2])) == (
        "Expected a Polars or pandas frame or an Arrow table, but got list; for arrays use "
        "Predictions.from_arrays."
    )


def test_rows_without_ids_are_named_by_their_number():
    old = Predictions.from_arrays(labels=["x", "y", "y"], targets=["x", "y", "y"], name="old")
    new = Predictions.from_arrays(labels=["x", "y", "y"], targets=["x", "z", "z"], name="new")
    assert refused(lambda: compare(old=old, new=new)) == (
        "old and new disagree on the target of row 2 ('y', 'z'), 3 ('y', 'z'); "
        "a sample has one true class: rows are matched by their position, so the files must have "
        "one order: name a column of ids with `id=` if there is one, or correct the wrong target."
    )
    missing = Predictions.from_arrays(labels=["x", None, "y"], name="new")
    assert refused(lambda: compare(old=old, new=missing)) == (
        "new has no predicted class in column 'label' for row 2; give every row a label, or leave "
        "the row out."
    )
    bad = Predictions.from_arrays(
        logits=np.array([[0.0, 1.0], [0.0, 1.0], [NAN, 1.0]]), class_names=["x", "y"], name="new"
    )
    assert refused(lambda: compare(old=old, new=bad)) == (
        "new has NaN or infinite logits for row 3; correct the row, or leave it out."
    )


def test_files_without_ids_of_different_lengths():
    old = Predictions.from_arrays(labels=[1, 2, 3], name="old.npz")
    new = Predictions.from_arrays(labels=[1, 2], name="new.npz")
    assert refused(lambda: compare(old=old, new=new)) == (
        "Files without ids must have the same rows in the same order, but their numbers of rows "
        "differ (old.npz 3, new.npz 2); add ids to both."
    )


@pytest.mark.parametrize("lacking", ["old", "new"])
def test_ids_in_one_file_only(lacking):
    tables = {
        side: Predictions.from_arrays(
            labels=[1, 2], ids=None if side == lacking else [1, 2], name=f"{side}.npz"
        )
        for side in ("old", "new")
    }
    assert refused(lambda: compare(**tables)) == (
        f"{lacking}.npz has no ids while another file has; add its ids, or leave them out of every "
        "file if all are in the same order."
    )


def test_a_kind_of_flip_that_is_none():
    table = Predictions.from_arrays(labels=[1, 2])
    result = compare(old=table, new=table)
    assert refused(lambda: result.flips("bad")) == (
        "Expected `kind` to be one of negative, positive, wrong_to_wrong, changed, but got 'bad'."
    )


def test_too_many_groups(monkeypatch):
    from flipguard.engines import count_table

    monkeypatch.setattr(count_table, "MOST_GROUPS", 2)
    old = Predictions.from_arrays(labels=[1, 2, 3], slices={"user": ["p", "q", "r"]})
    new = Predictions.from_arrays(labels=[1, 2, 3])
    assert refused(lambda: compare(old=old, new=new, by=["user"])) == (
        "Column 'user' has 3 different values, more than the 2 groups that make sense; group by a "
        "coarser column."
    )


def test_hostile_ids_neither_flood_nor_control_a_terminal():
    ids = ["\x1b[31m" + "z" * 500, "a\nb"]
    old = Predictions.from_arrays(labels=[1, 2], ids=[ids[0]] * 2, name="old")
    text = refused(lambda: compare(old=old, new=old))
    assert "\x1b" not in text
    assert len(text) < 250
    old = Predictions.from_arrays(labels=[1, 2], ids=[ids[1]] * 2, name="old")
    assert "'a\\nb'" in refused(lambda: compare(old=old, new=old))


# -- files that are none, or not what their name says ----------------------------------------------


def csv_text(rows: int = 2000) -> str:
    return "id,target,label\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(rows))


def jsonl_text(rows: int = 2000) -> str:
    lines = ({"id": i, "target": i % 3, "label": i % 2} for i in range(rows))
    return "".join(json.dumps(line) + "\n" for line in lines)


def whole_file(name: str, folder: Path) -> Path:
    """A sound file of two thousand rows."""
    path = folder / name
    frame = pl.DataFrame({"id": range(2000), "label": [i % 7 for i in range(2000)]})
    if name.endswith(".parquet"):
        frame.write_parquet(path)
    elif name.endswith((".arrow", ".feather", ".ipc")):
        frame.write_ipc(path)
    elif name.endswith(".npz"):
        np.savez(path, ids=np.arange(2000), labels=np.arange(2000) % 7)
    elif name.endswith(".csv"):
        path.write_text(csv_text())
    elif name.endswith(".csv.gz"):
        path.write_bytes(gzip.compress(csv_text().encode()))
    elif name.endswith(".csv.zst"):
        pl.read_csv(csv_text().encode()).write_csv(path, compression="zstd")
    elif name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(jsonl_text().encode()))
    else:
        path.write_text(jsonl_text())
    return path


def read_and_compare(path: Path, **roles: str) -> object:
    table = read_predictions(path, **roles)
    return compare(old=table, new=table)


TRUNCATED = (
    "table.parquet",
    "table.arrow",
    "table.feather",
    "table.ipc",
    "table.csv.gz",
    "table.csv.zst",
    "table.jsonl.gz",
    "table.jsonl",
)


@pytest.mark.parametrize("name", TRUNCATED)
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_truncated_files(name, kept, tmp_path):
    path = whole_file(name, tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    text = refused(lambda: read_and_compare(path))
    assert text.startswith(f"{path} cannot be read (")
    assert text.endswith("); it may be truncated, or its suffix may not match its format.")


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_truncated_npz(kept, tmp_path):
    path = whole_file("table.npz", tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    text = refused(lambda: read_and_compare(path))
    assert text.startswith(f"{path} cannot be read as NPZ (")
    assert text.endswith("); it may be truncated or of another format.")


def test_damaged_npz(tmp_path):
    path = tmp_path / "table.npz"
    np.savez_compressed(path, labels=np.random.default_rng(0).integers(0, 9, 5000))
    data = bytearray(path.read_bytes())
    data[500:600] = bytes(100)
    path.write_bytes(data)
    text = refused(lambda: read_and_compare(path))
    assert text.startswith(f"{path} cannot be read as NPZ (")


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.feather", "t.ipc"])
def test_text_under_the_name_of_another_format(name, tmp_path):
    path = tmp_path / name
    path.write_text(csv_text())
    text = refused(lambda: read_and_compare(path))
    assert text.startswith(f"{path} cannot be read (")


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv.zst"])
def test_text_that_is_not_compressed_is_read_as_it_is(name, tmp_path):
    path = tmp_path / name
    path.write_text(csv_text())
    assert read_and_compare(path).n == 2000


def test_text_under_the_name_of_npz(tmp_path):
    path = tmp_path / "t.npz"
    path.write_text(csv_text())
    text = refused(lambda: read_and_compare(path))
    assert text.startswith(f"{path} cannot be read as NPZ (")
    assert "allow_pickle" not in text


def test_a_pickle_under_the_name_of_npz_is_not_loaded(tmp_path):
    path = tmp_path / "t.npz"
    path.write_bytes(pickle.dumps({"labels": [1, 2]}))
    text = refused(lambda: read_and_compare(path))
    assert text.startswith(f"{path} cannot be read as NPZ (")
    assert "allow_pickle" not in text


def test_a_pickle_inside_an_npz_is_not_loaded(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, labels=np.array(["a", 1, None], dtype=object))
    assert refused(lambda: read_and_compare(path)) == (
        f"{path} holds Python objects (a pickle) in array 'labels', which are never loaded because "
        "they can run code; save numbers or fixed-width text (for example array.astype(str))."
    )


def test_a_single_array_under_the_name_of_npz(tmp_path):
    path = tmp_path / "t.npz"
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    assert refused(lambda: read_and_compare(path)) == (
        f"{path} is a single array, not an NPZ archive; save it with numpy.savez(file, ids=…, "
        "targets=…, labels=… or logits=…)."
    )


@pytest.mark.parametrize(
    "name",
    [
        "t.csv",
        "t.tsv",
        "t.jsonl",
        "t.ndjson",
        "t.parquet",
        "t.pq",
        "t.arrow",
        "t.feather",
        "t.ipc",
        "t.npz",
        "t.csv.gz",
        "t.jsonl.zst",
    ],
)
def test_files_of_no_bytes(name, tmp_path):
    path = tmp_path / name
    path.touch()
    assert refused(lambda: read_and_compare(path)) == (
        f"{path} is empty; expected a header and at least one row of predictions."
    )


@pytest.mark.parametrize(
    "header",
    ["id,target,label", "id,target,logits", "id,logit_a,logit_b", "id,label,logit_a,logit_b"],
)
@pytest.mark.parametrize("side", ["old", "new", "control"])
def test_files_of_a_header_alone(header, side, tmp_path, save):
    path = tmp_path / "t.csv"
    path.write_text(header + "\n")
    tables = {
        name: read_predictions(save(f"{name}.csv", good())) for name in ("old", "new", "control")
    }
    tables[side] = read_predictions(path)
    assert refused(lambda: compare(**tables)) == (
        f"{path} has columns but no rows; give at least one row."
    )


def test_a_parquet_file_of_no_rows(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame(schema={"id": pl.Int64, "logits": pl.List(pl.Float32)}).write_parquet(path)
    assert refused(lambda: read_and_compare(path)) == (
        f"{path} has columns but no rows; give at least one row."
    )


@pytest.mark.parametrize("arrays", [{"labels": []}, {"logits": np.empty((0, 3))}])
def test_an_npz_of_no_rows(arrays, save):
    path = save("t.npz", arrays)
    assert refused(lambda: read_and_compare(path)) == (
        f"{path} has columns but no rows; give at least one row."
    )


@pytest.mark.parametrize("name", ["t.txt", "t.pkl", "t", "t.gz", "t.parquet.gz", "t.npz.zst"])
def test_unknown_suffixes(name, tmp_path):
    path = tmp_path / name
    path.write_text(csv_text())
    assert refused(lambda: read_predictions(path)) == (
        f"{path} is of no format known by its name; expected .csv, .tsv or .jsonl (these also .gz "
        "or .zst), .parquet, .arrow, .feather or .npz."
    )


def test_a_folder(tmp_path):
    path = tmp_path / "t.csv"
    path.mkdir()
    assert refused(lambda: read_predictions(path)) == (
        f"{path} is a folder, not a file of predictions, and no run, because there is no run.json "
        "in it; name a file or a run."
    )


def test_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "t.csv"
    assert refused(lambda: read_predictions(path)) == f"{path} does not exist; check the path."


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        ({"id": "key"}, "has no column 'key', which `id=` asks for"),
        ({"target": "truth"}, "has no column 'truth', which `target=` asks for"),
        ({"label": "guess"}, "has no column 'guess', which `label=` asks for"),
    ],
)
def test_columns_asked_for_that_are_not_there(roles, sentence, save):
    path = save("t.csv", good(extra=[1, 2, 3, 4]))
    assert refused(lambda: read_predictions(path, **roles)) == (
        f"{path} {sentence}; its columns are 'id', 'target', 'label', 'extra'."
    )


@pytest.mark.parametrize("flag", ["id", "target", "label"])
def test_arrays_asked_for_that_are_not_there(flag, save):
    path = save("t.npz", {"labels": [1, 2], "ids": [1, 2]})
    assert refused(lambda: read_predictions(path, **{flag: "key"})) == (
        f"{path} has no array 'key', which `{flag}=` asks for; its arrays are 'labels', 'ids'."
    )


def test_a_table_without_ids(save):
    path = save("t.csv", good(id=None))
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has no column 'id' to join on (columns: 'target', 'label'); name the ids with "
        "`id=`, or use `id='row'` if all sides have the same rows in the same order."
    )


@pytest.mark.parametrize(
    ("suffix", "mark", "words"),
    [
        (".csv", ";", "semicolons"),
        (".csv", "\t", "tabs"),
        (".csv", "|", "vertical bars"),
        (".tsv", ",", "commas"),
    ],
)
def test_columns_that_another_sign_separates(suffix, mark, words, tmp_path):
    path = tmp_path / f"t{suffix}"
    header = mark.join(("id", "target", "label"))
    path.write_text(f"{header}\n{mark.join('abc')}\n")
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has a single column {header!r}, so its columns seem to be separated by {words}; "
        "save it with commas as .csv, or with tabs as .tsv."
    )


def test_neither_labels_nor_scores(save):
    path = save("t.csv", good(label=None))
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has neither predicted labels nor class scores (columns: 'id', 'target'); name the "
        "column of predicted classes with `label=`, or of grades with `correct=`, or add logits or "
        "probabilities."
    )
    path = save("t.npz", {"ids": [1, 2], "targets": [1, 2], "guess": [1, 2]})
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has neither labels nor logits nor probabilities (arrays: 'ids', 'targets', "
        "'guess'); name the array of predicted classes with `label=`."
    )


def test_scores_that_are_no_lists(save):
    path = save("t.parquet", good(logits=["1", "2", "3", "4"]))
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has a column 'logits' of type String, where a list of numbers per row is "
        "expected; store lists, or one column 'logit_<class>' per class."
    )


def test_wide_scores_that_are_no_numbers(save):
    path = save("t.parquet", good(logit_x=["1", "2", "3", "4"], logit_y=[1, 2, 3, 4]))
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has a score column 'logit_x' of type String, where numbers are expected; convert "
        "it, or rename it if it is no score."
    )


@pytest.mark.parametrize("order", [["1", "2", "3", "4"], ["4", "3", "2", "1"]])
@pytest.mark.parametrize(
    "scores",
    [
        {"logit_x": [1, 2, "three", 4], "logit_y": [0, 1, 2, 3]},
        {"logits": ["[1, 2]", "[3, 4]", "[5,", "[7, 8]"]},
        {"logits": ["[1, 2", "[3, 4]", "[5, 6]", "[7, 8]"]},
        {"logits": ["[1, 2]", "[3, 4]", '["a", "b"]', "[7, 8]"]},
    ],
)
def test_text_where_scores_should_be(scores, order, save):
    path = save("t.csv", {"id": ["1", "2", "3", "4"], **scores})
    other = save("other.csv", {"id": order, "label": ["1", "2", "1", "2"]})
    words = "has 'three' in score column 'logit_x'" if "logit_x" in scores else "cannot be read ("
    text = refused(lambda: compare(old=read_predictions(other), new=read_predictions(path)))
    assert text.startswith(f"{path} {words}")
    control = save("control.csv", {"id": ["1", "2", "3", "4"], "label": ["1", "2", "1", "2"]})
    text = refused(
        lambda: compare(
            old=read_predictions(other),
            new=read_predictions(control),
            control=read_predictions(path),
        )
    )
    assert text.startswith(f"{path} {words}")


def test_lines_of_different_lengths(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,label\n1,2\n3,4,5\n")
    assert refused(lambda: read_and_compare(path)).startswith(f"{path} cannot be read (")


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"id,label\n1,\xff\xfe\x00\n2,\x80\n")
    assert refused(lambda: read_and_compare(path)).startswith(f"{path} cannot be read (")


def test_lines_that_are_no_json(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": 1, "label": 2}\nnot json\n')
    assert refused(lambda: read_and_compare(path)).startswith(f"{path} cannot be read (")


def test_class_names_in_a_file_that_are_not_as_many_as_the_scores(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    columns = pa.table({"id": [1, 2], "logits": [[1.0, 2.0], [2.0, 1.0]]})
    stored = {b"flipguard.class_names": b'["a", "b", "c"]'}
    pq.write_table(columns.replace_schema_metadata(stored), path)
    assert refused(lambda: read_and_compare(path)) == (
        f"{path} has 2 scores a row in column 'logits' but names 3 classes; they must be as many."
    )


def test_a_file_that_vanishes_before_it_is_read(save):
    path = save("t.parquet", good())
    table = read_predictions(path)
    path.unlink()
    text = refused(lambda: compare(old=table, new=table))
    assert text.startswith(f"{path} cannot be read (")


# -- files that are altered, or never were whole ---------------------------------------------------


def npz_claiming(path: Path, shape: tuple[int, ...], *, size: int | None = None) -> Path:
    """An archive whose array of four integers claims another shape, or another size in the zip."""
    import io
    import zipfile

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i8", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("labels.npy", header.getvalue() + np.arange(4).tobytes())
        if size is not None:
            archive.getinfo("labels.npy").file_size = size
    return path


@pytest.mark.parametrize("shape", [(10**11,), (10**6, 10**6), (5,)])
def test_an_npz_that_claims_more_than_it_holds(shape, tmp_path):
    path = npz_claiming(tmp_path / "t.npz", shape)
    claimed = 8 * int(np.prod(shape))
    assert refused(lambda: read_predictions(path)) == (
        f"{path} cannot be read as NPZ (array 'labels' claims {claimed:,} bytes where at most 32 "
        "can be); it may be truncated or of another format."
    )


def test_an_npz_whose_archive_claims_more_than_it_holds(tmp_path):
    path = npz_claiming(tmp_path / "t.npz", (10**11,), size=10**12)
    text = refused(lambda: read_predictions(path))
    assert text.startswith(f"{path} cannot be read as NPZ (array 'labels' claims 800,000,000,000 ")


def test_an_npz_larger_than_memory(save, monkeypatch):
    def exhausted(*_: object) -> None:
        raise MemoryError

    path = save("t.npz", {"labels": [1, 2]})
    monkeypatch.setattr("flipguard.archives._members", exhausted)
    assert refused(lambda: read_predictions(path)) == (
        f"{path} holds more than fits in memory; write it as Parquet, which is read in pieces."
    )


@pytest.mark.parametrize("stored", ["[", "5", "null", '"ab"', '{"a": 1}', "[null]", '[["a"]]'])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_stored_class_names_that_are_no_list_of_names(stored, suffix, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / f"t{suffix}"
    columns = pa.table({"id": [1, 2], "logits": [[1.0, 2.0], [2.0, 1.0]]})
    columns = columns.replace_schema_metadata({"flipguard.class_names": stored})
    if suffix == ".parquet":
        pq.write_table(columns, path)
    else:
        with pa.ipc.new_file(path, columns.schema) as writer:
            writer.write_table(columns)
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has {stored!r} as 'flipguard.class_names' in its metadata, where a JSON list of "
        "class names is expected; correct it, or leave it out."
    )


@pytest.mark.parametrize("column", ["id", "target", "label"])
@pytest.mark.parametrize(("value", "told"), [(["a"], "a list"), ({"a": 1}, "an object")])
def test_lists_as_ids_and_classes_in_json(column, value, told, tmp_path):
    path = tmp_path / "t.jsonl"
    rows: list[dict[str, Any]] = [{"id": i, "target": "a", "label": "a"} for i in range(3)]
    rows[1][column] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has {told} in column '{column}' at line 2, where an id or a class is one name or "
        "one integer; write the value itself."
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in [rows[0]] * 1_500 + rows))
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has {told} in column '{column}' at line 1,502, where an id or a class is one name "
        "or one integer; write the value itself."
    )


@pytest.mark.parametrize("separator", [",", "\t"])
def test_columns_of_one_name(separator, tmp_path):
    path = tmp_path / ("t.csv" if separator == "," else "t.tsv")
    path.write_text("id,label,x,label,x\n1,a,b,c,d\n".replace(",", separator))
    assert refused(lambda: read_predictions(path)) == (
        f"{path} has more than one column called 'label', 'x'; give each column a different name."
    )


RAGGED = {
    "cut in its last line": ("id,label,x\n" + "1,a,b\n" * 3 + "2,a", 5, 2),
    "a short line early": ("id,label,x\n1,a,b\n2,a\n3,a,b\n", 3, 2),
    "a long line early": ("id,label,x\n1,a,b\n2,a,b,c\n3,a,b\n", 3, 4),
    "a long and a short line": ("id,label,x\n1,a,b,c\n2,a\n3,a,b\n", 2, 4),
    "a short line among quotes": ('id,label,x\n1,"a,\nb",c\n2,"a,b"\n3,a,b\n', 4, 2),
    "a short line late": ("id,label,x\n" + "1,a,b\n" * 90_000 + "2,a\n3,a,b\n", 90_002, 2),
}


@pytest.mark.parametrize("case", RAGGED)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_lines_of_more_or_fewer_fields_than_the_header(case, suffix, tmp_path):
    text, line, fields = RAGGED[case]
    path = tmp_path / f"t{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix == ".csv.gz" else text.encode())
    assert refused(lambda: read_and_compare(path)) == (
        f"{path} cannot be read (line {line:,} has {fields} fields where the header has 3); it may "
        "be truncated, or its suffix may not match its format."
    )


def test_pipes_and_devices(tmp_path):
    import os

    os.mkfifo(tmp_path / "t.csv")
    for path in (tmp_path / "t.csv", Path(os.devnull)):
        assert refused(lambda path=path: read_predictions(path)) == (
            f"{path} is no regular file but a pipe or a device, and flipguard reads a file more "
            "than once; save it to a file first."
        )


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz"])
@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("id", "{0} has no id in column 'id' at row 2; give every row another id."),
        (
            "label",
            "{0} has no predicted class in column 'label' for id 'b'; give every row a label, or "
            "leave the row out.",
        ),
    ],
)
def test_nothing_as_an_id_or_a_label(column, sentence, suffix, tmp_path):
    columns = good(**{column: ["a", "", "c", "d"]})
    path = tmp_path / f"t{suffix}"
    if suffix == ".npz":
        np.savez(path, **{f"{name}s": np.array(values) for name, values in columns.items()})
    elif suffix == ".jsonl":
        pl.DataFrame(columns).write_ndjson(path)
    elif suffix == ".csv":
        pl.DataFrame(columns).write_csv(path, quote_style="always")
    else:
        pl.DataFrame(columns).write_parquet(path)
    assert refused(lambda: read_and_compare(path)) == sentence.format(path)


def test_a_place_beyond_the_class_names(save):
    sentence = (
        "{} has target 2 in row 2, which is no index into its 2 class names; indices count from 0."
    )
    arrays = {"labels": [0, 1], "targets": [1, 2], "class_names": ["a", "b"]}
    assert refused(lambda: Predictions.from_arrays(**arrays, name="m")) == sentence.format("m")
    path = save("t.npz", arrays)
    assert refused(lambda: read_predictions(path)) == sentence.format(path)
