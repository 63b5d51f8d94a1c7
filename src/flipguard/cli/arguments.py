"""Python arguments in the library's sentences, turned into flags of the command line."""

from __future__ import annotations

import ast
import re
import shlex

# The library writes `label=`, or `id='key', label='pred'`; other text stays as it is.
ARGUMENTS = re.compile(r"`([a-z_]+=[^`\n]*)`")
COLUMNS = re.compile(r"\b(id|target|label)=('[^']*'|\"[^\"]*\")")
# Commands without flags for columns cannot match rows by their position either.
NAME_IDS = re.compile(r"name the ids with `id=`(, or use `id='row'` if [^;.]*)?")
FLAGS = frozenset(
    {
        "id",
        "target",
        "label",
        "correct",
        "by",
        "cluster",
        "control",
        "confidence",
        "exponent",
        "on_missing",
        "engine",
        "out",
        *("old", "new", "treated", "judge"),
        *("draws", "seed", "sample", "top"),
    }
)


def with_flags(text: str) -> str:
    """Return a sentence of the library with flags in place of Python arguments.

    >>> with_flags("name it with `label=`, or try: `id='my key', label='pred'`")
    "name it with --label, or try: --id 'my key' --label pred"
    """
    return ARGUMENTS.sub(_flags, text)


def _flags(found: re.Match[str]) -> str:
    name = found[1].removesuffix("=")
    if name in FLAGS:
        return _flag(name)
    try:
        call = ast.parse(f"_({found[1]})", mode="eval").body
    except SyntaxError:
        return found[0]
    if not isinstance(call, ast.Call) or call.args:
        return found[0]
    given = {word.arg: word.value for word in call.keywords}
    text = []
    for name, value in given.items():
        if name not in FLAGS or not isinstance(value, ast.Constant):
            return found[0]
        text.append(f"{_flag(name)} {shlex.quote(str(value.value))}")
    return " ".join(text)


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
    return ARGUMENTS.sub(_renames, text)


def _renames(found: re.Match[str]) -> str:
    renames = [f"{value} to '{role}'" for role, value in COLUMNS.findall(found[1])]
    return f"rename column {' and '.join(renames)}" if renames else found[0]


def _flag(argument: str) -> str:
    return "--" + argument.replace("_", "-")
