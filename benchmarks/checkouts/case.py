"""What a case is: commands that are carried out one after the other in a folder."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

# Paths as seen from a case's folder, which is SIDE/PART/NAME.
INPUTS, SETUP = "../../inputs", "../../setup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Commands of `python -m flipguard`, each without the program's name."""

    part: str
    name: str
    commands: tuple[tuple[str, ...], ...]
    quick: bool = False
    # Started as a process each, because it starts others that import its main module.
    cold: bool = False
    # What it prints depends on how fast the machine is, so only the files are compared.
    timed: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def words(text: str) -> tuple[str, ...]:
    """The words of a command as a shell would split it; {in} and {setup} are folders."""
    return tuple(shlex.split(text.replace("{in}", INPUTS).replace("{setup}", SETUP)))
