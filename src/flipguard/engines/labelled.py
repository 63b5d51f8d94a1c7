"""Counting labels: everything is a query over the paired table, streamed."""

from __future__ import annotations

from collections.abc import Callable

from flipguard.engines.alignment import OrderDiffersError, aligned_parts
from flipguard.engines.joining import joined_frames
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import CountingPlan, RowCounts, summed_rows
from flipguard.engines.positions import refuse_joined
from flipguard.engines.tally import Part, Tally
from flipguard.errors import InputError
from flipguard.predictions.faults import naming_any

COLUMNS = frozenset({"id", "label", "target", "cuts"})


def count_labels(plan: CountingPlan, begin: Callable[[], Tally]) -> tuple[Tally, RowCounts]:
    """One pass over files of labels: row for row if the ids allow it, else by a join."""
    pairing = Pairing(plan)
    if pairing.may_be_aligned():
        tally = begin()
        # One query makes sure of the rows and counts them all; groups take a query each.
        whole = tally.tables.get(None)
        sums = tally.sums if whole is not None and not whole.keys else []
        frame = pairing.aligned_frame(COLUMNS)
        try:
            for part in aligned_parts(pairing, frame, sums):
                tally.add(part)
        except OrderDiffersError:
            pass
        else:
            return tally, RowCounts(matched=pairing.heights[0])
    tally = begin()
    return tally, _joined(pairing, tally)


def _joined(pairing: Pairing, tally: Tally) -> RowCounts:
    rows: list[RowCounts] = []
    # Ids are carried along only if they are told: their hashes do the joining.
    want = COLUMNS if "flips" in tally.wants else COLUMNS - {"id"}
    for frame in joined_frames(pairing, want, rows):
        try:
            refuse_joined(pairing, frame)
        except InputError:
            # Only now are the ids themselves worth their memory: the same again, naming them.
            for named in joined_frames(pairing, COLUMNS, []):
                refuse_joined(pairing, named)
            raise
        with naming_any(pairing.sides):
            tally.add(Part(rows=pairing.canonical(frame)))
    return summed_rows(rows)
