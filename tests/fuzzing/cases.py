"""Case k of base seed s: files, a command line, and what kind of case it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tests.fuzzing import damage
from tests.fuzzing.commands import Commands
from tests.fuzzing.parts import GROUP_NAMES, NAMES, NATIVE_KINDS, Case, Model
from tests.fuzzing.twists import Twists
from tests.fuzzing.writing import ABSENT, Field, Raw, Sheet, packed, suffix, written

FORMATS = ("csv", "csv", "tsv", "jsonl", "jsonl", "parquet", "arrow", "npz")


class Builder(Twists, Commands):
    """Makes one case; every choice comes from one stream of random numbers."""

    def __init__(self, seed: int, number: int) -> None:
        self.seed, self.number = seed, number
        self.rng = random.Random(f"{seed}:{number}")
        self.twist = "none"

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

    # -- files -----------------------------------------------------------------------------------

    def _sheet(self, model: Model) -> Sheet:
        rows = model.rows
        fields = []
        if not (self.without_ids and model.format == "npz"):
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
        if self.column_twice == model.name and model.format != "jsonl":
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
        other = self.other_target
        if other == (model.name, row):
            return self.rng.choice([c for c in self.classes if c != target])
        return target

    def _score_fields(self, model: Model) -> list[Field]:
        scores = [list(row) for row in self._score_rows(model)]
        scores = [scores[row] for row in model.rows]
        name, bad = self.bad_score or (None, None)
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
        if self.odd_column == model.name:
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
        wrong = self.wrong_suffix or (None, "")
        for name, sheet in sheets.items():
            ending = suffix(rng, sheet.format)
            data = packed(written(sheet, rng), ending)
            path = name + (wrong[1] if wrong[0] == name else ending)
            if self.damaged == name:
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


def case(seed: int, number: int) -> Case:
    """Case `number` of a base seed: the same on every machine."""
    return Builder(seed, number).build()
