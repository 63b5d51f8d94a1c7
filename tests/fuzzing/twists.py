"""Twists: what is done to a table on purpose, so that it must be refused or read with care."""

from __future__ import annotations

import random
from typing import Any

from tests.fuzzing.parts import Model


class Marks:
    """What a twist leaves for the writing of the files; `None` where no twist asked for it."""

    rng: random.Random
    n: int
    twist: str
    ids: list[Any]
    targets: list[Any]
    classes: list[Any]
    class_kind: str
    models: list[Model]
    groups: list[tuple[str, list[Any], str, tuple[bool, bool]]]
    names: dict[str, str]
    on_missing: str
    seed: int
    number: int
    # The model that is meant, and in some what its file gets.
    other_target: tuple[str, int] | None = None
    bad_score: tuple[str, Any] | None = None
    wrong_suffix: tuple[str, str] | None = None
    column_twice: str | None = None
    odd_column: str | None = None
    damaged: str | None = None
    without_ids: bool = False

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.rng.random() < share

    def _give_scores(self, model: Model) -> None:
        raise NotImplementedError


class Twists(Marks):
    """One of these methods is called; each changes what will be written."""

    def _twist(self) -> None:
        twists = [getattr(self, name) for name in dir(self) if name.startswith("_twist_")]
        twist = self.rng.choice(twists)
        self.twist = twist.__name__.removeprefix("_twist_")
        twist(self.rng.choice(self.models[:2]))

    def _twist_float_label(self, model: Model) -> None:
        model.label_style = "float"

    def _twist_all_floats(self, model: Model) -> None:
        for each in self.models:
            each.label_style = each.target_style = "float"

    def _twist_float_targets(self, model: Model) -> None:
        for each in self.models:
            each.target_style = "float"

    def _twist_decimals(self, model: Model) -> None:
        model.label_style = model.target_style = "decimal"

    def _twist_numbers_as_text(self, model: Model) -> None:
        model.label_style = model.target_style = "text"

    def _twist_nan_among_integers(self, model: Model) -> None:
        """Integers and the text NaN in one column of text: missing there, however it is written."""
        self.classes, self.class_kind = [0, 1, 2], "int"
        self.targets = [self.rng.choice(["0", "1", "2", "NaN", "nan"]) for _ in range(self.n)]
        for each in self.models:
            each.score_kind, each.class_names, each.with_label = None, None, True
            each.labels = [self.rng.choice("012") for _ in range(self.n)]

    def _twist_fraction(self, model: Model) -> None:
        model.labels = [0.5 if self.chance(0.3) else label for label in model.labels]

    def _twist_missing_label(self, model: Model) -> None:
        model.labels[self.rng.randrange(self.n)] = None

    def _twist_missing_id(self, model: Model) -> None:
        self.ids[self.rng.randrange(self.n)] = None

    def _twist_id_twice(self, model: Model) -> None:
        model.rows.append(self.rng.choice(model.rows))

    def _twist_id_in_two_spellings(self, model: Model) -> None:
        self.ids[0], self.ids[-1] = self.rng.choice([(7, "7"), (7, "007"), ("1.0", 1), (7, 7.0)])

    def _twist_other_target(self, model: Model) -> None:
        self.models[0].with_target = self.models[1].with_target = True
        self.other_target = (model.name, self.rng.randrange(self.n))

    def _twist_other_classes(self, model: Model) -> None:
        model.labels = [f"class {label}" for label in model.labels]

    def _twist_list_as_class(self, model: Model) -> None:
        value = self.rng.choice([[1], {"a": 1}, [], {}, ["cat"]])
        at = self.rng.choice([self.n - 1, self.rng.randrange(self.n)])
        model.labels = [value if row == at else label for row, label in enumerate(model.labels)]

    def _twist_one_score(self, model: Model) -> None:
        model.score_kind, model.with_label = self.rng.choice(["logits", "probabilities"]), False
        model.score_shape, model.classes = "wide", [self.classes[0]]
        model.class_names = None
        if model.format == "npz":
            model.score_shape = "list"

    def _twist_class_without_a_name(self, model: Model) -> None:
        if model.format != "npz":
            model.score_kind, model.with_label = "logits", self.chance(0.5)
            model.score_shape, model.classes = "wide", [*self.classes, ""]
            model.class_names = None

    def _twist_nan_score(self, model: Model) -> None:
        self._give_scores(model)
        self.bad_score = (
            model.name,
            self.rng.choice([float("nan"), float("inf"), None, 7.5, -0.5]),
        )

    def _twist_scores_of_another_width(self, model: Model) -> None:
        self._give_scores(model)
        self.bad_score = (model.name, "width")

    def _twist_key_twice(self, model: Model) -> None:
        model.quirks.add("key twice")
        self.column_twice = model.name

    def _twist_late_key(self, model: Model) -> None:
        """A JSON Lines file whose last rows have what the first rows lack."""
        self.n = self.rng.choice([1_020, 1_200])
        self.ids = list(range(self.n))
        self.targets = [self.rng.choice(self.classes) for _ in range(self.n)]
        for each in self.models:
            each.rows = list(range(self.n))
            each.labels = [self.rng.choice(self.classes) for _ in range(self.n)]
        model.format, model.class_names = "jsonl", None
        model.quirks -= {"trailing separator", "bare quotes", "cr"}
        if model.score_kind and model.score_shape == "list" and self.class_kind != "int":
            model.score_shape = "wide"
        late = self.rng.choice([1_000, 1_001, self.n - 2])
        names = [name for name, *_ in self.groups]
        self.groups = [
            (name, [None if i < late else self.rng.choice("ab") for i in range(self.n)], "plain", w)
            for name, w in zip(names, [(True, True)] * len(names), strict=True)
        ]
        if self.chance(0.5):
            self.targets = [None if i < late else t for i, t in enumerate(self.targets)]
        elif self.chance(0.3):
            model.labels[-1] = self.rng.choice([[1], {}, ["cat"], 2.5])

    def _twist_bare_quotes(self, model: Model) -> None:
        model.format = self.rng.choice(["csv", "tsv"])
        model.class_names = None
        if model.score_kind and model.score_shape == "list" and self.class_kind != "int":
            model.score_shape = "wide"
        model.quirks |= {"bare quotes"}
        values = [self.rng.choice(['a 5" disk', "plain", 'x"y"z', "b"]) for _ in range(self.n)]
        self.groups = [*self.groups[:1], ("text of it", values, "plain", (True, True))]

    def _twist_wrong_suffix(self, model: Model) -> None:
        self.wrong_suffix = (
            model.name,
            self.rng.choice(
                [".txt", "", ".csv", ".parquet", ".npz", ".jsonl", ".csv.gz", ".arrow"]
            ),
        )

    def _twist_empty(self, model: Model) -> None:
        model.rows = []

    def _twist_odd_column(self, model: Model) -> None:
        self.odd_column = model.name

    def _twist_no_ids(self, model: Model) -> None:
        for each in self.models:
            if each.format == "npz" or self.chance(0.8):
                each.format, each.quirks = "npz", set()
                each.rows = list(range(self.n))
                if each.score_kind:
                    each.score_shape, each.class_names = "list", each.classes
        self.without_ids = True

    def _twist_damage(self, model: Model) -> None:
        self.damaged = model.name

    _twist_damage_again = _twist_damaged_once_more = _twist_damage
