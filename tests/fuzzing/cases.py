"""Case k of base seed s: files, a command line, and what kind of case it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tests.fuzzing import damage
from tests.fuzzing.writing import ABSENT, Field, Raw, Sheet, packed, suffix, written

FORMATS = ("csv", "csv", "tsv", "jsonl", "jsonl", "parquet", "arrow", "npz")

NAMES = (
    "cat", "dog", "owl", "Cat", " cat", "cat ", "été", "猫", "\u202eabc", "a,b", "a\tb", "it's",
    'say "hi"', "two\nlines", "x|y", "a=b", "NaN", "None", "null", "nan", "N/A", "-", "007", "07",
    "1.5x", "3.0.0", "1e", "(missing)", "all", "True", "true", "TRUE", "yes", "0x10", "+1", "1_0",
    "=1+1", "<b>", "[1]", "{}", "😀", "e\u0301", "é", "#", "'", "\\", "\\n", "a" * 70,
)  # fmt: skip
GROUP_NAMES = (
    "site", "user", "site|device", "a,b", 'the "site"', "été", " site ", "0|id", "__cut_site", "n",
    "count", "key0", "site.x", "^s.*$", "*", "a\tb", "x\ny", "logits2", "ID", "Target", "old",
    "new", "kind", "é" * 30, "`site`", "__row", "0|label", "problem0", "number0", "column0",
    "literal", "len",
)  # fmt: skip


@dataclass(kw_only=True)
class Case:
    """Everything that a case needs; `twist` says what was done to it on purpose."""

    seed: int
    number: int
    files: dict[str, bytes]
    arguments: list[str]
    task: dict[str, Any]
    rules: list[dict[str, Any]] | None
    pinned: str | None
    twist: str
    # Files before they were damaged, where they were.
    sound: dict[str, bytes] = field(default_factory=dict)

    @property
    def may_crash(self) -> bool:
        """Whether a damaged file goes to native code, so that only another process is safe."""
        return any(name.endswith(NATIVE) for name in self.sound)


NATIVE = (".parquet", ".pq", ".arrow", ".feather", ".ipc")


@dataclass(kw_only=True)
class Model:
    """What one model says: labels by row of the scenario, and how its file is written."""

    name: str
    format: str
    labels: list[Any]
    rows: list[int]
    fields: list[Field] = field(default_factory=list)
    class_names: list[Any] | None = None
    quirks: set[str] = field(default_factory=set)
    label_style: str = "plain"
    target_style: str = "plain"
    with_target: bool = True
    with_label: bool = True
    score_kind: str | None = None
    score_shape: str = "wide"
    classes: list[Any] = field(default_factory=list)
    extra: dict[str, np.ndarray] = field(default_factory=dict)


class Builder:
    """Makes one case; every choice comes from one stream of random numbers."""

    def __init__(self, seed: int, number: int) -> None:
        self.seed, self.number = seed, number
        self.rng = random.Random(f"{seed}:{number}")
        self.twist = "none"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # -- what is true of the samples -------------------------------------------------------------

    def build(self) -> Case:
        rng = self.rng
        self.n = rng.choice([2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 40])
        if self.chance(0.008):
            self.n = rng.choice([1_200, 1_200, 3_000])
        self.ids = self._ids()
        self.classes, self.class_kind = self._classes()
        self.targets = [rng.choice(self.classes) for _ in range(self.n)]
        if self.chance(0.3):
            self.targets = [None if self.chance(0.2) else t for t in self.targets]
        late = self.n >= 1_000 and self.chance(0.5)
        if late:
            self.targets = [None if i < 1_050 else t for i, t in enumerate(self.targets)]
        self.models = [self._model(name) for name in self._model_names()]
        if not any(model.with_target for model in self.models[:2]) and self.chance(0.7):
            self.models[0].with_target = True
        self.groups = self._groups()
        self.names = self._column_names()
        self.on_missing = self._partial()
        if self.chance(0.35):
            self._twist()
        sheets = {model.name: self._sheet(model) for model in self.models}
        return self._finish(sheets)

    def _model_names(self) -> list[str]:
        return ["old", "new", *(["control"] if self.chance(0.12) else [])]

    def _ids(self) -> list[Any]:
        rng, n = self.rng, self.n
        kinds: dict[str, Callable[[int], Any]] = {
            "int": lambda i: i,
            "big": lambda i: 10**15 + i,
            "huge": lambda i: 2**64 + i,
            "negative": lambda i: i - n // 2,
            "zeros": lambda i: f"{i:03d}",
            "text": lambda i: f"sample-{i}",
            "mixed": lambda i: i if i % 3 else f"s{i}",
            "hostile": lambda i: f"{NAMES[i % len(NAMES)]}#{i}",
            "unicode": lambda i: f"é{i}" if i % 2 else f"e\u0301{i - 1}",
        }
        self.id_kind = rng.choice(["int", "int", "text", "text", *kinds])
        ids = [kinds[self.id_kind](i) for i in range(n)]
        if self.chance(0.4):
            rng.shuffle(ids)
        self.id_style = "plain"
        if self.id_kind in ("int", "negative", "big") and self.chance(0.15):
            self.id_style = rng.choice(["float", "text", "decimal"])
        return ids

    def _classes(self) -> tuple[list[Any], str]:
        rng = self.rng
        kind = rng.choice(
            ["names", "names", "hostile", "hostile", "int", "int", "bool", "zeros", "mixed", "like"]
        )
        if kind == "names":
            return ["cat", "dog", "owl"][: rng.choice([2, 3])], kind
        if kind == "hostile":
            return rng.sample(NAMES, rng.choice([2, 3, 4])), kind
        if kind == "int":
            low = rng.choice([0, 0, 0, 1, -2, 1_000])
            return list(range(low, low + rng.choice([2, 3, 5]))), kind
        if kind == "bool":
            return [True, False], kind
        if kind == "zeros":
            return ["007", "07", 7], kind
        if kind == "mixed":
            return [0, 1, "cat", "007"], kind
        # Names that careless readers take for one another.
        pool: list[list[Any]] = [
            ["True", "true", "TRUE"], ["3.0", "3", "x"], ["cat", " cat", "Cat"],
            ["é", "e\u0301", "e"], ["null", "NaN", "None"], ["(missing)", "missing", "-"],
            ["1.50", "1.5", "v"], ["0", "00", "zero"], ["[1]", "{}", "1"], ["1", "1 ", "I"],
        ]  # fmt: skip
        return rng.choice(pool), kind

    # -- models ----------------------------------------------------------------------------------

    def _model(self, name: str) -> Model:
        rng = self.rng
        form = rng.choice(FORMATS)
        if name == "new" and self.chance(0.25):
            form = self.models_format
        self.models_format = form
        accuracy = rng.choice([0.5, 0.7, 0.9])
        labels = [
            t if t is not None and self.chance(accuracy) else rng.choice(self.classes)
            for t in self.targets
        ]
        rows = list(range(self.n))
        if self.chance(0.45):
            rng.shuffle(rows)
        model = Model(name=name, format=form, labels=labels, rows=rows)
        model.with_target = self.chance(0.8) if name == "old" else self.chance(0.5)
        if self.chance(0.35):
            self._give_scores(model)
        if form in ("csv", "tsv", "jsonl"):
            quirks = {
                "crlf": 0.2, "no last line end": 0.2, "blank lines": 0.1, "bom": 0.08,
                "trailing separator": 0.04, "bare quotes": 0.1, "cr": 0.02,
            }  # fmt: skip
            model.quirks = {quirk for quirk, share in quirks.items() if self.chance(share)}
            if form == "jsonl":
                model.quirks -= {"trailing separator", "bare quotes", "cr"}
        return model

    def _give_scores(self, model: Model) -> None:
        rng = self.rng
        classes = [*self.classes]
        rng.shuffle(classes)
        if self.chance(0.1):
            classes.append(99 if self.class_kind == "int" else "another")
        model.score_kind = rng.choice(["logits", "probabilities"])
        model.with_label = self.chance(0.3)
        model.classes = classes
        numbered = self.class_kind == "int" and min(self.classes) == 0
        if model.format == "npz" or (
            self.chance(0.4) and (model.format in NATIVE_KINDS or numbered)
        ):
            model.score_shape = "list"
            if model.format in ("npz", *NATIVE_KINDS) and not (numbered and self.chance(0.6)):
                model.class_names = classes
            elif numbered:
                model.classes = list(range(max(self.classes) + 1))
            else:
                model.score_shape = "none"
        if model.score_shape == "none":
            model.score_kind, model.with_label = None, True

    def _score_rows(self, model: Model) -> list[list[float]]:
        rng, width = self.rng, len(model.classes)
        rows = []
        for label in model.labels:
            if model.score_kind == "logits":
                row = [round(rng.gauss(0, 2), rng.choice([0, 1, 3])) for _ in range(width)]
                best = max(row) + rng.choice([0.5, 1.0, 2.25])
            else:
                # Sixteenths add up to exactly 1.
                cuts = sorted(rng.sample(range(1, 64), width - 1)) if width > 1 else []
                row = [(b - a) / 64 for a, b in zip([0, *cuts], [*cuts, 64], strict=True)]
                best = max(row)
                row[row.index(best)] = row[0]
            place = next((j for j, c in enumerate(model.classes) if c == label), 0)
            if model.score_kind == "logits":
                row[place] = best
            else:
                row[0], row[place] = row[place], best
            rows.append(row)
        if model.score_kind == "logits" and self.chance(0.1):
            # Ties: the first of the largest counts.
            rows = [[float(int(s)) for s in row] for row in rows]
        return rows

    # -- groups, names, rows on one side ---------------------------------------------------------

    def _groups(self) -> list[tuple[str, list[Any], str, tuple[bool, bool]]]:
        """(name, values, style, whether old and new have it) of each further column."""
        rng = self.rng
        found = []
        names = rng.sample(GROUP_NAMES, rng.choice([0, 1, 1, 2]))
        for name in names:
            pool: list[list[Any]] = [
                ["north", "south", "été"], ["a", "b", None], [1, 2, 3], [0, 1, None], [True, False],
                [True, False, None], [1.5, 2.0, 0.25], [1.0, 2.0, None], ["(missing)", None, "x"],
                ["1.0", "2.0", "x"], ["007", "7", "x"], ["a", "A", " a"], list(NAMES), [None],
                ["True", "true", "x"], [2, 2.5, None], ["(missing)", "x"],
                ['say "hi"', "a,b", "c\nd"],
            ]  # fmt: skip
            pick = rng.choice(pool)
            values = [rng.choice(pick) for _ in range(self.n)]
            style = "float" if self.chance(0.2) and isinstance(pick[0], int) else "plain"
            where = rng.choice([(True, True), (True, True), (True, False), (False, True)])
            found.append((name, values, style, where))
        return found

    def _column_names(self) -> dict[str, str]:
        names = {"id": "id", "target": "target", "label": "label"}
        every_target = all(model.with_target for model in self.models)
        every_label = all(model.with_label for model in self.models)
        if self.chance(0.1):
            names["id"] = self.rng.choice(["key", "sample id", "id,2", "ids2"])
        if every_target and self.chance(0.15):
            names["target"] = self.rng.choice(["wahr", "the class", "target2"])
        if every_label and self.chance(0.15):
            names["label"] = self.rng.choice(["guess", "said", "label|2"])
        return names

    def _partial(self) -> str:
        """Perhaps leaves rows out of a side; whether that is allowed."""
        rng = self.rng
        if not self.chance(0.2) or self.n < 4:
            return "drop" if self.chance(0.1) else "error"
        for model in rng.sample(self.models, rng.choice([1, 2])):
            model.rows = [row for row in model.rows if not self.chance(0.2)] or model.rows[:1]
        return "drop" if self.chance(0.9) else "error"

    # -- twists ----------------------------------------------------------------------------------

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

    # -- files -----------------------------------------------------------------------------------

    def _sheet(self, model: Model) -> Sheet:
        rows = model.rows
        fields = []
        if not (getattr(self, "without_ids", False) and model.format == "npz"):
            ids = [self.ids[row] for row in rows]
            fields.append(Field(name=self.names["id"], cells=ids, style=self.id_style))
        if model.with_target:
            targets = [self._target(model, row) for row in rows]
            fields.append(Field(name=self.names["target"], cells=targets, style=model.target_style))
        if model.with_label:
            labels = [model.labels[row] for row in rows]
            fields.append(Field(name=self.names["label"], cells=labels, style=model.label_style))
        place = [m.name for m in self.models].index(model.name)
        for name, values, style, where in self.groups:
            if place < 2 and where[place]:
                fields.append(Field(name=name, cells=[values[row] for row in rows], style=style))
        if model.score_kind is not None:
            fields += self._score_fields(model)
        fields += self._further_fields(model, len(rows))
        if model.format != "npz" and self.chance(0.3):
            self.rng.shuffle(fields)
        if getattr(self, "column_twice", None) == model.name and model.format != "jsonl":
            fields.append(self.rng.choice(fields))
        return Sheet(
            format=model.format,
            fields=fields,
            class_names=model.class_names,
            quirks=frozenset(model.quirks),
            height=len(rows),
            extra=model.extra,
        )

    def _target(self, model: Model, row: int) -> Any:
        target = self.targets[row]
        other = getattr(self, "other_target", None)
        if other == (model.name, row):
            return self.rng.choice([c for c in self.classes if c != target])
        return target

    def _score_fields(self, model: Model) -> list[Field]:
        scores = [list(row) for row in self._score_rows(model)]
        scores = [scores[row] for row in model.rows]
        name, bad = getattr(self, "bad_score", (None, None))
        if name == model.name and scores:
            row = self.rng.choice(scores)
            if bad == "width":
                row.append(0.0) if self.chance(0.5) else row.pop()
            else:
                row[self.rng.randrange(len(row))] = bad
        kind = str(model.score_kind)
        if model.score_shape == "list":
            return [self._list_field(model, kind, scores)]
        prefix = {"logits": "logit_", "probabilities": "probability_"}[kind]
        width = len(model.classes)
        rows = [row[:width] + [None] * (width - len(row)) for row in scores]
        return [
            Field(
                name=f"{prefix}{label}",
                cells=[_json_score(row[j], model) for row in rows],
                style="text" if self.chance(0.02) else "number",
            )
            for j, label in enumerate(model.classes)
        ]

    def _list_field(self, model: Model, kind: str, scores: list[list[Any]]) -> Field:
        if model.format == "npz":
            if len({len(row) for row in scores}) > 1:
                scores = [row[:1] for row in scores]
            shape = (len(scores), len(model.classes))
            array = np.array(
                [[np.nan if s is None else s for s in row] for row in scores], dtype=np.float64
            )
            return Field(name=kind, cells=[], array=array if scores else array.reshape(shape))
        if model.format in NATIVE_KINDS:
            dtype = pa.list_(self.rng.choice([pa.float64(), pa.float64(), pa.float32()]))
            return Field(name=kind, cells=[], array=pa.array(scores, type=dtype))
        return Field(name=kind, cells=[Raw(_json_list(row)) for row in scores])

    def _further_fields(self, model: Model, height: int) -> list[Field]:
        """Columns that are not needed, which must not matter."""
        rng = self.rng
        fields = []
        if self.chance(0.25):
            texts = [rng.choice([*NAMES, None]) for _ in range(height)]
            fields.append(Field(name="note of it", cells=texts))
        if self.chance(0.1):
            fields.append(Field(name="weight", cells=[rng.random() for _ in range(height)]))
        if self.chance(0.1) and model.format in ("jsonl", *NATIVE_KINDS):
            lists = [[1, i] for i in range(height)]
            if model.format == "jsonl" and self.chance(0.5):
                lists = [rng.choice([{"a": [i]}, [], None, "x", ABSENT]) for i in range(height)]  # type: ignore[misc]
            fields.append(Field(name="boxes", cells=lists))
        if getattr(self, "odd_column", None) == model.name:
            if model.format in NATIVE_KINDS:
                fields.append(
                    Field(name="odd", cells=[], array=_odd_array(rng, height, model.format))
                )
            elif model.format == "npz":
                model.extra["odd"] = rng.choice(
                    [
                        np.zeros((2, 3)), np.zeros(height + 1), np.array(5),
                        np.zeros(height, dtype="datetime64[s]"), np.zeros(height, dtype=complex),
                    ]
                )  # fmt: skip
        return fields

    def _finish(self, sheets: dict[str, Sheet]) -> Case:
        rng = self.rng
        files: dict[str, bytes] = {}
        sound: dict[str, bytes] = {}
        paths = {}
        wrong = getattr(self, "wrong_suffix", (None, ""))
        for name, sheet in sheets.items():
            ending = suffix(rng, sheet.format)
            data = packed(written(sheet, rng), ending)
            path = name + (wrong[1] if wrong[0] == name else ending)
            if getattr(self, "damaged", None) == name:
                sound[path] = data
                data = damage.damaged(data, rng)
            if (
                self.twist == "empty"
                and name not in paths
                and not sheet.height
                and self.chance(0.5)
            ):
                data = b""
            files[path] = data
            paths[name] = path
        return self._with_command(files, paths, sound)

    def _with_command(
        self, files: dict[str, bytes], paths: dict[str, str], sound: dict[str, bytes]
    ) -> Case:
        rng = self.rng
        columns = [name for name, *_ in self.groups]
        by = [name for name in columns if self.chance(0.5)]
        if self.chance(0.15):
            by.append(rng.choice(["target"] * 12 + ["label", "id", "nosuch"]))
        by = list(dict.fromkeys(by))
        full = [name for name, values, *_ in self.groups if None not in values]
        full = columns if self.chance(0.1) else full
        cluster = rng.choice(full) if full and self.chance(0.15) else None
        asked = {r: n for r, n in self.names.items() if n != r or self.chance(0.01)}
        controls = [paths["control"]] if "control" in paths else []
        policy, rules, pinned = None, None, None
        if self.chance(0.4):
            rules, pinned = self._rules(columns), self._pinned(files)
            policy = policy_text(rules, pinned)
            files["policy.toml"] = policy.encode()
        arguments = ["gate" if policy else "compare", paths["old"], paths["new"]]
        arguments += ["--policy", "policy.toml"] if policy else []
        arguments += [f"--by={name}" for name in by]
        arguments += [f"--cluster={cluster}"] if cluster else []
        arguments += [f"--control={path}" for path in controls]
        arguments += [f"--{role}={name}" for role, name in asked.items()]
        if self.on_missing == "drop" or self.chance(0.1):
            arguments += [f"--on-missing={self.on_missing}"]
        groups = [*(rule["by"] for rule in rules or [] if "by" in rule), *by]
        task = {
            "old": paths["old"],
            "new": paths["new"],
            "controls": tuple(controls),
            "by": tuple(dict.fromkeys(groups)),
            "cluster": cluster,
            "on_missing": self.on_missing,
            **asked,
        }
        return Case(
            seed=self.seed,
            number=self.number,
            files=files,
            arguments=arguments,
            task=task,
            rules=rules,
            pinned=pinned,
            twist=self.twist,
            sound=sound,
        )

    def _rules(self, columns: list[str]) -> list[dict[str, Any]]:
        rng = self.rng
        rules = []
        for _ in range(rng.choice([1, 1, 2])):
            metric, low, high = rng.choice(
                [
                    ("negative_flip_rate", 0.0, 0.5), ("churn", 0.05, 0.8),
                    ("positive_flip_rate", 0.0, 0.5), ("accuracy_gain", -0.3, 0.3),
                    ("error_rate_new", 0.1, 0.7), ("wrong_to_wrong", 0.01, 0.4),
                ]
            )  # fmt: skip
            limit = rng.choice([round(rng.uniform(low, high), 3), 0.25, 0.5])
            rule: dict[str, Any] = {"metric": metric}
            rule["min" if metric == "accuracy_gain" else "max"] = limit
            rule["judge"] = rng.choice(["point", "point", "interval"])
            if columns and self.chance(0.4):
                rule["by"] = rng.choice([*columns, "target"])
                if self.chance(0.3):
                    rule["only"] = [self._group_of(rule["by"])]
                if self.chance(0.3):
                    rule["min_n"] = rng.choice([1, 2, 3])
            rules.append(rule)
        return rules

    def _group_of(self, column: str) -> str:
        """The name of a group as it should be shown, mostly."""
        values = next((v for name, v, *_ in self.groups if name == column), self.targets)
        value = self.rng.choice([*values, "nosuch"])
        if value is None or value == "(missing)":
            return "(missing)" if value is None else '"(missing)"'
        if isinstance(value, bool):
            return str(value).lower()
        return str(int(value)) if value in (0.0, 1.0, 2.0) else str(value)

    def _pinned(self, files: dict[str, bytes]) -> str | None:
        """Perhaps a file of samples that may not flip."""
        rng = self.rng
        ids = [i for i in self.ids if i is not None]
        if not self.chance(0.2) or getattr(self, "without_ids", False) or not ids:
            return None
        chosen = rng.sample(ids, min(len(ids), rng.choice([1, 2, 5])))
        if self.chance(0.1):
            chosen.append(rng.choice(["not there", None]))
        form = rng.choice(["csv", "tsv", "jsonl", "parquet"])
        notes = [rng.choice(['5" disk', "plain", "two\nlines", None]) for _ in chosen]
        fields = [Field(name="id", cells=chosen), Field(name="why", cells=notes)]
        quirks = {"bare quotes"} if self.chance(0.3) else set()
        sheet = Sheet(format=form, fields=fields, quirks=frozenset(quirks), height=len(chosen))
        name = "pinned." + form
        files[name] = written(sheet, rng)
        return name


NATIVE_KINDS = ("parquet", "arrow")


def _json_score(score: Any, model: Model) -> Any:
    if isinstance(score, float) and score != score and model.format == "jsonl":
        return None
    return score


def _json_list(row: list[Any]) -> str:
    texts = [
        "null" if s is None else "NaN" if s != s else str(s).replace("inf", "1e999") for s in row
    ]
    return "[" + ", ".join(texts) + "]"


def _odd_array(rng: random.Random, height: int, form: str) -> pa.Array:
    """Arrow types that table libraries trip over."""
    only_arrow: list[Callable[[], pa.Array]] = [
        lambda: pa.array([pa.MonthDayNano([1, 2, 3])] * height),
        lambda: pa.array([[1]] * height, type=pa.list_view(pa.int64())),
        lambda: pa.RunEndEncodedArray.from_arrays([max(height, 1)], pa.array(["x"]))[:height],
        lambda: pa.UnionArray.from_dense(
            pa.array([0] * height, type=pa.int8()),
            pa.array(range(height), type=pa.int32()),
            [pa.array(range(height), type=pa.int64())],
        ),
    ]
    kinds: list[Callable[[], pa.Array]] = [
        lambda: pa.array([5] * height, type=pa.duration("ms")),
        lambda: pa.array([b"\xff"] * height),
        lambda: pa.array([{"a": 1}] * height),
        lambda: pa.array([[("k", 1)]] * height, type=pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([Decimal("1.5")] * height, type=pa.decimal256(40, 2)),
        lambda: pa.array([3] * height, type=pa.time32("s")),
    ]
    return rng.choice([*kinds, *only_arrow] if form == "arrow" else kinds)()


def policy_text(rules: list[dict[str, Any]], pinned: str | None) -> str:
    """The policy as TOML."""
    import json

    lines = []
    for rule in rules:
        lines.append("[[rule]]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in rule.items()]
    if pinned is not None:
        lines += ["[pinned]", f'ids = "{pinned}"']
    return "\n".join(lines) + "\n"


def case(seed: int, number: int) -> Case:
    """Case `number` of a base seed: the same on every machine."""
    return Builder(seed, number).build()
