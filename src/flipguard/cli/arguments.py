"""Python arguments in the library's sentences, turned into flags of the command line."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

# The library writes `label=`, or `id='key', label='pred'`, and for a setting of a run
# `preprocessing.mean` or `machine.fuse=off`; other text stays as it is.
ARGUMENTS = re.compile(r"`([a-z_]+=[^`\n]*)`")
SETTINGS = re.compile(r"`(machine|preprocessing)\.([a-z_]+)(?:=([a-z0-9_]+))?`")
COLUMNS = re.compile(r"\b(id|target|label)=('[^']*'|\"[^\"]*\")")
# Commands without flags for columns cannot match rows by their position either.
NAME_IDS = re.compile(r"name the ids with `id=`(, or use `id='row'` if [^;.]*)?")
# Some commands have no flag for grades, so they leave these clauses out.
OR_GRADES = ", or of grades with `correct=`"
USE_GRADES = re.compile(r"; if it holds the grades to use, give `correct=[^`]*`")
# Arguments whose flags are called otherwise, by the names that their commands have.
OTHER_NAMES = {"settings": "set", "sources": "fix", "plan_only": "plan", "timed": "time"}
# Settings of a run that a command without a flag for them takes by --set.
SET_BY = "set"
SET = frozenset({"data_root", "weights"})
# Settings of a run that are flags of some commands, by the table that they are in.
FLAGS_OF_TABLES: Mapping[str, set[str] | None] = {
    "machine": {"device", "fuse"},
    "preprocessing": None,
}

_FLAGS: ContextVar[Mapping[str, str] | None] = ContextVar("flags", default=None)


def flags_of(command: Any, arguments: Sequence[str]) -> dict[str, str]:
    """Return the flags of the command that these arguments call, by the names of its parameters."""
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return {
        parameter.name: parameter.opts[0]
        for parameter in command.params
        if parameter.opts[0].startswith("--")
    }


def use_flags(flags: Mapping[str, str]) -> None:
    """Turn arguments into these flags from now on."""
    _FLAGS.set(flags)


def with_flags(text: str) -> str:
    """Return a sentence of the library with flags in place of Python arguments.

    Only arguments for which the running command has a flag are replaced.

    >>> use_flags({"id": "--id", "label": "--label", "resume": "--resume", "fuse": "--fuse"})
    >>> with_flags("name it with `label=`, or try: `id='my key', label='pred'`")
    "name it with --label, or try: --id 'my key' --label pred"
    >>> with_flags("resume with `resume=True`, or use `machine.fuse=off`")
    'resume with --resume, or use --fuse off'
    """
    if _flag("correct") is None:
        text = USE_GRADES.sub("", text.replace(OR_GRADES, ""))
    return SETTINGS.sub(_setting, ARGUMENTS.sub(_arguments, text))


def _arguments(found: re.Match[str]) -> str:
    name, _, value = found[1].partition("=")
    if not value:
        return _flag(name) or found[0]
    try:
        call = ast.parse(f"_({found[1]})", mode="eval").body
    except SyntaxError:
        return found[0]
    if not isinstance(call, ast.Call) or call.args:
        return found[0]
    text = []
    for word in call.keywords:
        flag = _flag(word.arg or "")
        if flag is None or not isinstance(word.value, ast.Constant | ast.Name):
            return found[0]
        given = word.value.id if isinstance(word.value, ast.Name) else word.value.value
        joint = "" if flag.endswith("=") else " "
        text.append(flag if given is True else f"{flag}{joint}{shlex.quote(str(given))}")
    return " ".join(text)


def _setting(found: re.Match[str]) -> str:
    table, name, value = found.groups()
    flags, known = _FLAGS.get() or {}, FLAGS_OF_TABLES[table]
    if name not in flags or (known is not None and name not in known):
        return found[0]
    return flags[name] if value is None else f"{flags[name]} {value}"


def _flag(argument: str) -> str | None:
    """Return the flag of an argument, `--set name=` for a setting, or None."""
    flags = _FLAGS.get() or {}
    flag = flags.get(argument) or flags.get(OTHER_NAMES.get(argument, ""))
    if flag is None and argument in SET and SET_BY in flags:
        return f"{flags[SET_BY]} {argument}="
    return flag


def with_renames(text: str) -> str:
    """Return a sentence of the library for a command without flags for columns.

    >>> with_renames("name the ids with `id=`"), with_renames("try: `id='key', label='pred'`")
    ("call the column of ids 'id'", "try: rename column 'key' to 'id' and 'pred' to 'label'")
    """
    text = NAME_IDS.sub("call the column of ids 'id'", text)
    text = text.replace(
        "name the column of predicted classes with `label=`",
        "call the column of predicted classes 'label'",
    )
    text = USE_GRADES.sub("", text.replace(OR_GRADES, ", or that of grades 'correct'"))
    return ARGUMENTS.sub(_renames, text)


def _renames(found: re.Match[str]) -> str:
    renames = [f"{value} to '{role}'" for role, value in COLUMNS.findall(found[1])]
    return f"rename column {' and '.join(renames)}" if renames else found[0]
