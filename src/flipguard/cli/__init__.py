"""The command line: parsing and calling, nothing else.

`main` holds the one rule of exit codes: what is not a verdict never ends in a verdict's code.
"""

from __future__ import annotations

import errno
import os
import sys

from flipguard.cli import output
from flipguard.cli.arguments import with_flags
from flipguard.errors import FlipguardError, InputError, printable

# The libraries alone need more to be loaded.
LEAST_ADDRESS_SPACE = 512 << 20
# A table of pandas, written with its index, has a column without a name.
COLUMN_FLAGS = frozenset({"--by", "--cluster", "--id", "--label", "--target"})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_JUDGED, INTERRUPTED = output.NOT_DELIVERED, 130


def main() -> None:
    """Run the command line and exit: 0, 1 or 3 only if the command itself came to that answer.

    Python ends in 1 after an error of its own, which a gate's caller would read as FAIL. So
    whatever is raised, also what is no `Exception`, becomes one sentence and exit code 2.
    """
    try:
        output.make_ready()
        code = _run(sys.argv[1:])
    except BaseException as problem:
        code = _explained(problem)
    raise SystemExit(output.flushed(code))


def _run(arguments: list[str]) -> int:
    """The exit code of a command that came to its end."""
    _check_address_space()
    _refuse_empty(arguments)
    import typer

    from flipguard.cli.commands import app

    # Not `app()`, which would turn a broken pipe and an interrupt into exit codes of its own.
    command = typer.main.get_command(app)
    try:
        with command.make_context("flipguard", arguments) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _check_address_space() -> None:
    """Refuse a limit under which a library ends the process in its own way: OpenBLAS by exit 1."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limits
        return
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        allowed, _ = resource.getrlimit(kind)
        if allowed != resource.RLIM_INFINITY and allowed < LEAST_ADDRESS_SPACE:
            raise InputError(
                f"Expected a limit on memory (ulimit) of at least {LEAST_ADDRESS_SPACE >> 20} MB, "
                f"but it is {allowed >> 20} MB; raise it."
            )


def _refuse_empty(arguments: list[str]) -> None:
    """Refuse an empty text, as an unset variable of a shell leaves it: as a path, it is here."""
    for before, given in zip(["", *arguments], arguments, strict=False):
        flag, value = before, given
        if given.startswith("--") and "=" in given:
            flag, _, value = given.partition("=")
        if not value and flag not in COLUMN_FLAGS:
            after = f"the argument after {printable(flag)!r}"
            what = f"`{flag}`" if flag.startswith("--") else after
            raise InputError(f"Expected {what} to have a value, but it is empty; write one.")


def _explained(problem: BaseException) -> int:
    """Print why there is no answer, and return the exit code for that."""
    code = INTERRUPTED if isinstance(problem, KeyboardInterrupt) else NOT_JUDGED
    try:
        if os.environ.get("FLIPGUARD_TRACEBACK"):
            import traceback

            output.say("".join(traceback.format_exception(problem)).rstrip())
        else:
            output.say(_sentence(problem))
    except BaseException:  # noqa: S110
        # There may be no memory left for a sentence, or a second Ctrl-C: the code says enough.
        pass
    return code


def _sentence(problem: BaseException) -> str:
    if isinstance(problem, FlipguardError):
        # What a file holds may be quoted in the sentence: it must not steer the terminal.
        return f"flipguard: {printable(with_flags(str(problem)), longest=20_000)}"
    if isinstance(problem, KeyboardInterrupt):
        return "flipguard: interrupted."
    if isinstance(problem, MemoryError):
        return "flipguard: There is not enough memory for this; free some, or use smaller inputs."
    if isinstance(problem, OSError) and problem.filename is not None:
        name = printable(str(problem.filename))
        return f"flipguard: {name} cannot be used ({problem.strerror}); check the path."
    if isinstance(problem, OSError) and problem.errno in FULL:
        return f"flipguard: Writing failed ({problem.strerror}); make room, or write elsewhere."
    if hasattr(problem, "format_message"):  # a command that was typed wrongly
        return _usage(problem)
    if isinstance(problem, SystemExit) and isinstance(problem.__context__, BrokenPipeError):
        return ""  # the library that prints the help ends so where its reader has left
    return (
        f"flipguard: this is a bug ({type(problem).__name__}: {printable(str(problem))}); "
        "please report it, with what is printed if FLIPGUARD_TRACEBACK=1 is set."
    )


def _usage(problem: BaseException) -> str:
    """What was typed wrongly, and how it is typed: click's words, on one line."""
    said = getattr(problem, "format_message")()  # noqa: B009
    context = getattr(problem, "ctx", None)
    if type(problem).__name__ == "NoArgsIsHelpError" or context is None:
        return said and f"flipguard: {said}"  # the help was printed already
    told = f"{said.rstrip('.')}. {context.get_usage()}; see `{context.command_path} --help`."
    return f"flipguard: {printable(' '.join(told.split()), longest=2_000)}"
