"""Which old run each member of a fine-tuned run starts from.

Members that all start from one model stay alike, and the mean of models that err alike errs as they
do. So where old has members of its own, each new one starts from one of them, and no two from the
same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flipguard.errors import InputError, listed
from flipguard.methods import Method, method_of
from flipguard.training.config import Config
from flipguard.training.folder import Run, is_finished
from flipguard.training.members import member_count, reuse_count


def starts_of(config: Config, old: Run) -> tuple[str, ...]:
    """The runs that members start from, in their order; none if all start from old itself."""
    # Runs that old was given are not its own members, and may be of any architecture.
    named = () if old.config.guides else old.document.get("members", ())
    # They lie beside the folder itself, and not beside a link to it.
    place = Path(os.path.realpath(old.folder))
    starts = own_starts(config, old.folder, [place / name for name in named])
    gone = [os.path.relpath(one, place) for one in starts if not is_finished(Path(one))]
    if gone:
        raise InputError(
            f"Expected the members of {old.folder} to be finished runs for new ones to start from, "
            f"but found none in {listed(gone)}, seen from there; move them along with it, or leave "
            "`fine_tune` out."
        )
    return starts


def own_starts(config: Config, old: Path, members: Sequence[Path]) -> tuple[str, ...]:
    """The same, by where old and its members lie, whether they are trained yet or not."""
    if not members:
        return ()
    count = member_count(config)
    if len(members) < count:
        raise InputError(
            f"Expected {old} to have {count} members for as many new ones to start from, but it "
            f"has {len(members)}; set `options.members` to {len(members)} or less, or leave "
            "`fine_tune` out."
        )
    # The first of old's are what `reuse` takes over as they are; others are what is started from.
    # Each is written in one way, since a member is known by its settings, and this is one of them.
    return tuple(os.path.normpath(place) for place in members[reuse_count(config) : count])


def refuse_start(method: Method, old: Run) -> None:
    """Refuses one model that would start from the weights of several."""
    if method.is_mean or not method_of(old.config.method)[0].is_mean:
        return
    otherwise = "" if method.default_needs().same_layout else ", or leave `fine_tune` out"
    raise InputError(
        f"Expected `{method.name}` to start from one model's weights, but {old.folder} is an "
        f"ensemble; give one of its members as `--old`{otherwise}."
    )
