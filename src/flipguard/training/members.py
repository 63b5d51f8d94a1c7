"""Members of ensembles: separate runs, which are kept so that later students can reuse them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from flipguard.errors import InputError, listed, printable
from flipguard.models.code import check_code
from flipguard.run_document import how_to_finish
from flipguard.runs.config import Config, Seeds, derive_seed, needs_of
from flipguard.runs.folder import Run
from flipguard.runs.key import run_key
from flipguard.training.batches import calibrates
from flipguard.training.record import recorded_key
from flipguard.training.scoping import without_held_out

FOLDER = "members"


def member_config(config: Config, index: int, start: str | None = None) -> Config:
    """Return the configuration of a member: trained without a method, with a derived seed.

    If the student starts from the old model's weights, the member does too, or from `start`.
    """
    seeds = Seeds(seed=derive_seed(config.seeds.seed, "member", index) % 2**31)
    if config.recipe.member_order == "shared":
        together = derive_seed(config.seeds.seed, "members") % 2**31
        seeds = dataclasses.replace(seeds, order=together, augment=together)
    return dataclasses.replace(
        config,
        # Temperatures are fitted on samples that no member was trained on.
        scope=without_held_out(config.scope) if calibrates(config) else config.scope,
        method="none",
        options={},
        old=() if not config.fine_tune else config.old if start is None else (start,),
        guides=(),
        seeds=seeds,
        # The seeds contain the choice, so runs with either setting can share a member.
        recipe=dataclasses.replace(config.recipe, member_order="own"),
    )


def member_folder(
    config: Config, out: Path, *, key_of_run: Callable[[str], str] = recorded_key
) -> Path:
    """Return the folder of a member: next to the runs that use it, named by its key."""
    key = run_key(config, option_defaults={}, key_of_run=key_of_run)
    return out.absolute().parent / FOLDER / key


def member_count(config: Config) -> int:
    """Return the number of a run's members; 0 if its method uses none."""
    members = needs_of(config).members
    return 0 if members is None else members.count


def reuse_count(config: Config) -> int:
    """Return the number of a run's members that are reused from the old run."""
    members = needs_of(config).members
    return 0 if members is None else members.reused


def load_guides(config: Config, class_names: tuple[str, ...]) -> list[Run]:
    """Return the finished runs given as `guides`, which may have any architecture."""
    runs = [Run.read(Path(folder)) for folder in config.guides]
    for run in runs:
        check_code(run.config.model)
        if not run.finished:
            raise InputError(
                f"Expected `guides` to be finished runs, but {printable(str(run.folder))} is "
                f"{run.status}; {how_to_finish(run.folder, run.document)}."
            )
        if run.class_names != class_names:
            here, there = set(class_names), set(run.class_names)
            what = (
                f"lacks {listed([name for name in class_names if name not in there])}"
                if here - there
                else "has them in another order"
                if here == there
                else "has more classes"
            )
            raise InputError(
                f"Expected `guides` to have the {len(class_names):,} classes that the run has, but "
                f"{printable(str(run.folder))} {what}; choose other runs, or other data."
            )
    return runs
