"""Stored views: the logits of an ensemble on augmented inputs, computed once for many students.

An augmented input is a function of seed, view and sample, so it is not stored: a student computes
it again, and reads the ensemble's logits for it from a table. The seed depends on the members and
not on the student, so that all students of the same members use the same table.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flipguard.data import (
    DataSet,
    FolderSplit,
    NoAugmentation,
    Split,
    TextSplit,
    build_augmentation,
)
from flipguard.data.image_folders import DecodedSplit
from flipguard.errors import InputError
from flipguard.methods import method_of
from flipguard.methods.elodi import ViewOptions
from flipguard.references import Reference
from flipguard.references.stored_logits import FLOATS, StoredViews, pack_logits, packed_width
from flipguard.runs.config import Config, derive_seed
from flipguard.runs.folder import Run
from flipguard.training.batches import BatchSource, calibrates
from flipguard.training.devices import free_memory
from flipguard.training.fused_group import APART
from flipguard.training.interrupting import time_is_up
from flipguard.training.monitor import Report
from flipguard.training.record import weights_of
from flipguard.training.scoping import without_held_out
from flipguard.training.view_table import Chunk, TableShape, ViewStore, need_room

FOLDER = "views"
SHARE = 8  # a table of at most an eighth of a GPU's free memory is kept there
TELL = 10.0  # seconds between progress lines


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPlan:
    """Which views of which samples are stored, and where; the members are not known yet."""

    config: Config
    data: DataSet
    wanted: ViewOptions
    shape: TableShape
    place: Path  # the folder of all stored views of the runs next to it

    def identity(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return everything that decides the numbers in the table."""
        config, scope = self.config, self.config.scope
        texts = isinstance(self.data.train, TextSplit)
        return {
            "data": self.data.fingerprint,
            # They decide which samples are held out, and so the temperatures fitted on them.
            "calibrated": [
                scope.samples,
                scope.seed,
                # Left out of tables that were stored before there was the choice.
                *(["per class"] if without_held_out(scope).per_class else []),
            ]
            if calibrates(config)
            else None,
            "members": [_identity(run) for run in runs],
            **_decoding(self.data.train),
            "tokens_of": config.model if texts else None,
            "augment": "none" if texts else repr(build_augmentation(config.recipe.augment)),
            "seed": self.seed(runs),
            "views": self.shape.views,
            "top": self.wanted.top,
            "dtype": self.wanted.kept,
            "precision": config.machine.precision,
        }

    def seed(self, runs: Sequence[Run]) -> int:
        """Return the augmentation's seed, which all students of the same members share."""
        return derive_seed(0, "views", *(weights_of(run) for run in runs))

    def stored(
        self,
        runs: Sequence[Run],
        guide: Callable[[], Reference],
        *,
        fabric: Any,
        material: BatchSource,
        deadline: float | None,
        report: Report,
    ) -> tuple[StoredViews, BatchSource, Path] | None:
        """Return the table, the source of the samples augmented for it, and its folder.

        Missing rows are computed. Return None if time was up before all were computed.
        """
        of = self.identity(runs)
        name = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]
        store = ViewStore(self.place / name, self.shape, of=of)
        replayed = material.with_seed(self.seed(runs))
        ended = True
        if fabric.is_global_zero:
            with store.held(deadline=deadline, report=report) as ours:
                ended = ours and self._fill(store, guide, replayed, fabric, deadline, report)
        if not fabric.broadcast(ended):  # the others wait here
            return None
        reference = self._reference(store.table())
        device = material.device
        if device.type == "cuda" and self.shape.size <= free_memory(device) // SHARE:
            reference = reference.to(device)
        return reference, replayed, store.folder

    def _reference(self, table: Any) -> StoredViews:
        return StoredViews(
            table,
            views=self.shape.views,
            classes=len(self.data.class_names),
            top=self.wanted.top,
            kept=self.wanted.kept,
        )

    def _fill(
        self,
        store: ViewStore,
        guide: Callable[[], Reference],
        material: BatchSource,
        fabric: Any,
        deadline: float | None,
        report: Report,
    ) -> bool:
        """Compute the missing rows of the table; return False if time was up before the end."""
        for chunk in store.begin():
            report(
                f"samples {chunk.start:,} to {chunk.stop - 1:,} of view {chunk.view} are damaged "
                f"at {store.folder}; they are computed again"
            )
        if self.wanted.count > self.shape.views:
            report("nothing is augmented, so one view is stored")
        missing = store.missing()
        if not missing:
            report(f"found {self.shape} at {store.folder}")
            return True
        report(f"storing {self.shape} at {store.folder}")
        began = told = time.monotonic()
        ensemble = guide()
        try:
            for count, chunk in enumerate(missing, start=1):
                store.write(chunk, self._rows(chunk, ensemble, material, fabric))
                now = time.monotonic()
                # After a chunk and not before it, so that every call makes progress.
                if time_is_up(deadline) and count < len(missing):
                    return False
                if now - told >= TELL:
                    left = (now - began) / count * (len(missing) - count)
                    report(f"  {count:,} of {len(missing):,} parts stored  {left:.0f} s left")
                    told = now
        finally:
            store.record()
        return True

    @torch.no_grad()
    def _rows(self, chunk: Chunk, ensemble: Reference, material: BatchSource, fabric: Any) -> Any:
        """Return the rows of a chunk; the same batches every time, and so the same bytes."""
        found = []
        indices = torch.arange(chunk.start, chunk.stop)
        # Several teachers may compute at the same time.
        for some in torch.split(indices, max(material.evaluation_batch_size() // APART, 1)):
            inputs, _ = material.batch(some, epoch=chunk.view)
            with fabric.autocast():
                logits = ensemble(inputs) if isinstance(inputs, Tensor) else ensemble(**inputs)
            _refuse_overflow(logits, self.wanted)
            found.append(pack_logits(logits, top=self.wanted.top, kept=self.wanted.kept).cpu())
        return torch.cat(found).numpy()


def plan_views(config: Config, out: Path, data: DataSet, material: BatchSource) -> ViewPlan | None:
    """Return the plan of a configuration's stored views, or None; raise if it is impossible."""
    classes = len(data.class_names)
    wanted = method_of(config.method)[0].views(config.options, classes)
    if wanted is None:
        return None
    augmentation = build_augmentation(config.recipe.augment)
    plain = isinstance(data.train, TextSplit) or isinstance(augmentation, NoAugmentation)
    if not plain and wanted.count > config.recipe.epochs:
        raise InputError(
            f"Expected `views` to be at most the {config.recipe.epochs} epochs that use them, but "
            f"got {wanted.count}; lower it, or leave it out."
        )
    plan = ViewPlan(
        config=config,
        data=data,
        wanted=wanted,
        shape=TableShape(
            views=1 if plain else wanted.count,
            samples=len(material),
            width=packed_width(classes=classes, top=wanted.top),
            number_bytes=2 if wanted.kept == "float16" else 4,
        ),
        place=out.absolute().parent / FOLDER,
    )
    if not plan.place.exists():
        # Checked before any member is trained. If the folder exists, the views may be in it.
        need_room(plan.shape, plan.place)
    return plan


def _identity(run: Run) -> dict[str, Any]:
    """Return everything that decides a member's logits for an image."""
    own = {name: run.document[name] for name in ("preprocessing",) if name in run.document}
    return {"model": run.config.model, "weights": weights_of(run), **own}


def _decoding(split: Split) -> dict[str, str]:
    """Return how image files are decoded, if not as the data say."""
    files = split.files if isinstance(split, DecodedSplit) else split
    wanted = files.preprocessing if isinstance(files, FolderSplit) else None
    return {} if wanted is None else {"decoded": repr(wanted)}


def _refuse_overflow(logits: Tensor, wanted: ViewOptions) -> None:
    largest = torch.finfo(FLOATS[wanted.kept]).max
    if bool((logits.abs() <= largest).all()):
        return
    way_out = "train members whose logits are in this range"
    if wanted.kept == "float16" and bool(logits.isfinite().all()):
        way_out = "set `views_dtype=float32`"
    raise InputError(
        f"Expected the ensemble to give logits that {wanted.kept} can hold, up to {largest:g}, "
        f"but got {logits.flatten()[logits.abs().argmax()].item():g}; {way_out}."
    )
