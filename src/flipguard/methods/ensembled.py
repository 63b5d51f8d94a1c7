"""`ensemble`: several models trained apart, whose logits are averaged: the paragon."""

from __future__ import annotations

from flipguard.methods.base import Method, Option, Options, Printed
from flipguard.methods.needs import Members, Needs

MEMBERS = Option(
    name="members",
    default=8,
    sentence="How many models are averaged.",
    printed=Printed(value=16),
    counts="members",
)


def _needs(options: Options) -> Needs:
    return Needs(members=Members(count=MEMBERS.whole(options)))


ENSEMBLE = Method(
    name="ensemble",
    sentence="Several models trained apart, whose logits are averaged: the paragon.",
    paper="PCT, section 4.3",
    build=None,
    options=(MEMBERS,),
    needs=_needs,
)
