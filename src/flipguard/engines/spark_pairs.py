"""What Spark's Python workers do with paired rows: count them, by the local engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
import pyarrow as pa

from flipguard.engines import local
from flipguard.engines.labelled import COLUMNS
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import LABELS, TARGET, CountingPlan, cut_column
from flipguard.engines.spark_rows import SideRows, packed, record_batch, spark_type, unpacked
from flipguard.errors import InputError
from flipguard.predictions.scores import rows_per_read
from flipguard.predictions.table import Predictions

IDS_TO_NAME = 3
# More rows at a time would not make counting labels faster.
MOST_ROWS_AT_A_TIME = 200_000


@dataclass(slots=True)
class Findings:
    """What was seen beside the counts: numbers of rows, and what is to be refused."""

    numbers: Counter[str] = field(default_factory=Counter)
    ids: dict[str, list[Any]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def see(self, what: str, ids: pl.Series) -> None:
        """Counts rows, and keeps the first of their ids."""
        if len(ids):
            self.numbers[what] += len(ids)
            self._keep(what, ids.drop_nulls().sort().head(IDS_TO_NAME).to_list())

    def add(self, other: Findings) -> None:
        """Takes in what another worker saw."""
        self.numbers.update(other.numbers)
        self.unreadable = sorted({*self.unreadable, *other.unreadable})
        self.problems = sorted({*self.problems, *other.problems})
        for what, ids in other.ids.items():
            self._keep(what, ids)
        for model, names in other.names.items():
            self.names[model] = sorted({*self.names.get(model, []), *names})

    def _keep(self, what: str, ids: list[Any]) -> None:
        self.ids[what] = sorted([*self.ids.get(what, []), *ids])[:IDS_TO_NAME]

    def to_json(self, worker: int) -> str:
        """As text; no two workers write the same."""
        found = [self.numbers, self.ids, self.names, self.unreadable, self.problems]
        return json.dumps([worker, *found])

    @classmethod
    def from_json(cls, text: str) -> Findings:
        """The findings of one worker."""
        _, numbers, *rest = json.loads(text)
        return cls(Counter(numbers), *rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRows:
    """Counts rows that stand side by side, by the local engine, some at a time."""

    plan: CountingPlan
    sides: tuple[SideRows, ...]
    keys: dict[str, pl.DataType]

    @property
    def fields(self) -> dict[str, str]:
        """The columns of the counts, and what Spark calls their types."""
        fields = {"findings": "string", "table_number": "bigint"}
        fields |= {f"key{j}": spark_type(dtype) for j, dtype in enumerate(self.keys.values())}
        return fields | dict.fromkeys(self.plan.layout.names, "bigint")

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The counts of all the rows that this worker gets, and what else it saw in them."""
        from pyspark import TaskContext

        tables, findings = self.plan.tables(), Findings()
        for rows in self._in_blocks(batches):
            self._look(rows, findings)
            matched = rows.filter(pl.all_horizontal(pl.col(r"^number\d+$") == 1))
            findings.numbers["paired"] += matched.height
            if not matched.height or findings.unreadable or findings.problems:
                continue
            plan = self._plan_of(matched)
            try:
                counted = local.count(plan)
            except InputError as problem:
                findings.problems.append(str(problem))
                continue
            self._note_names(plan, findings)
            findings.numbers["matched"] += matched.height
            for i, odd in enumerate(counted.odd_labels):
                if self.sides[i].side.class_names is not None:
                    findings.numbers[f"odd{i}"] += odd
            for name, table in tables.items():
                table.add(counted.tables[name].summed())
        task = TaskContext.get()
        told = findings.to_json(-1 if task is None else task.partitionId())
        yield record_batch(self.fields, {"findings": pl.Series([told])}, 1)
        if findings.numbers["matched"]:
            for number, table in enumerate(tables.values()):
                yield self._counts(number, table.summed())

    def key_types(self) -> dict[str, pl.DataType]:
        """The columns by which the counts are grouped, and their types."""
        # One row of nothing is enough to see the types that the local engine would group by.
        columns: dict[str, pl.Series] = {}
        for side in self.sides:
            row = record_batch(side.fields, {}, 1)
            columns |= {name: pl.Series(name, row.column(name)) for name in side.fields}
            if side.width:
                columns[f"scores{side.index}"] = pl.Series([[0.0] * side.width])
        plan = local.with_control_labels(self._plan_of(pl.DataFrame(columns)))
        pairing = Pairing(plan)
        schema = pairing.canonical(pairing.aligned_frame(COLUMNS)).collect_schema()
        keys = [cut_column(place) for place in range(len(self.plan.cuts))]
        return {key: schema[key] for key in keys}

    def _counts(self, number: int, table: pl.DataFrame) -> Any:
        columns = {name: table[name] for name in self.plan.layout.names}
        columns["table_number"] = pl.Series([number]).new_from_index(0, table.height)
        for j, key in enumerate(self.keys):
            if key in table.columns:
                columns[f"key{j}"] = packed(table[key])
        return record_batch(self.fields, columns, table.height)

    def _in_blocks(self, batches: Iterable[Any]) -> Iterator[pl.DataFrame]:
        """Spark's batches, put together to as many rows as suit the local engine."""
        widest = max(1, *(rows.width for rows in self.sides))
        enough = min(MOST_ROWS_AT_A_TIME, rows_per_read(widest))
        pending: list[Any] = []
        have = 0
        for batch in batches:
            pending.append(batch)
            have += batch.num_rows
            if have >= enough:
                yield pl.DataFrame(pa.Table.from_batches(pending))
                pending, have = [], 0
        if have:
            yield pl.DataFrame(pa.Table.from_batches(pending))

    def _look(self, rows: pl.DataFrame, findings: Findings) -> None:
        """Which rows are there, on which sides, how often."""
        sides = range(len(self.sides))
        ids = unpacked(rows["id"], self.sides[0].ids)
        number = [rows[f"number{i}"] for i in sides]
        for i in sides:
            findings.unreadable += rows[f"problem{i}"].drop_nulls().unique().to_list()
            here = number[i].is_not_null()
            findings.numbers[f"rows{i}"] += int(here.sum())
            findings.see(f"missing{i}", ids.filter(here & ids.is_null()))
            # The second row of an id, once, however many rows of others it meets.
            twice = number[i] == 2
            for j in sides:
                if j != i:
                    twice = twice & (number[j].fill_null(1) == 1)
            findings.see(f"twice{i}", ids.filter(twice.fill_null(False)))
            for j in sides:
                if i != j and 0 in (i, j):
                    only = here & number[j].is_null() & ids.is_not_null()
                    findings.see(f"only{i}lacks{j}", ids.filter(only))
        both = number[0].is_not_null() & number[1].is_not_null()
        in_all = rows.select(pl.all_horizontal(each.is_not_null() for each in number)).to_series()
        findings.numbers["not_in_control"] += int((both & ~in_all).sum())

    def _note_names(self, plan: CountingPlan, findings: Findings) -> None:
        """The classes beside scores that name none: only all of them tell whether they match."""
        bare = [i for i in (0, 1) if self.sides[i].nameless]
        pairing = Pairing(local.with_control_labels(plan)) if bare else None
        if pairing is None or pairing.classes != pl.String:
            return
        table = pairing.canonical(pairing.aligned_frame(COLUMNS)).collect()
        for i in bare:
            others = [c for c in (TARGET, LABELS[1 - i]) if c in table.columns]
            seen = {name for c in others for name in table[c].unique().drop_nulls()}
            findings.names[str(i)] = sorted(seen.union(findings.names.get(str(i), [])))

    def _plan_of(self, rows: pl.DataFrame) -> CountingPlan:
        """The plan over these rows alone."""
        models = [self._side_of(side, rows) for side in self.sides]
        old, new, *controls = models
        return replace(self.plan, old=old, new=new, controls=tuple(controls))

    def _side_of(self, side: SideRows, rows: pl.DataFrame) -> Predictions:
        i, schema = side.index, side.schema
        columns = [unpacked(rows["id"], side.ids).alias(str(side.side.id))]
        for j, column in enumerate(side.columns):
            values = unpacked(rows[f"side{i}_{j}"], schema[column]).alias(column)
            if column != side.side.id:
                columns.append(values)
        scores = side.side.scores
        if scores is not None:
            flat = rows[f"scores{i}"].explode().to_numpy().reshape(-1, side.width)
            # Some rows cannot tell whether numbered classes are meant by names: all rows will.
            names = scores.class_names or tuple(str(j) for j in range(side.width))
            scores = replace(
                scores, array=flat, list_column=None, wide_columns=None, class_names=names
            )
        return replace(side.side, frame=pl.DataFrame(columns).lazy(), scores=scores)
