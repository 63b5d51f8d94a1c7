"""`ensemble`: several models trained apart, whose logits are averaged: the paragon."""

from __future__ import annotations

from flipguard.errors import InputError
from flipguard.methods.base import Method, Objective, Option, Printed, Setting


def _build(setting: Setting) -> Objective:
    raise InputError(
        f"Expected {setting.options['members']} members to be trained apart, as runs of "
        "`none`, but got one model to train."
    )


ENSEMBLE = Method(
    name="ensemble",
    sentence="Several models trained apart, whose logits are averaged: the paragon.",
    paper="PCT, section 4.3",
    build=_build,
    options=(
        Option(
            name="members",
            default=8,
            key_default=8,
            sentence="How many models are averaged.",
            printed=Printed(value=16),
        ),
    ),
    needs=frozenset({"members"}),
)
