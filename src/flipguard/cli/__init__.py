"""The command line: parse arguments and call the library.

`main` makes sure that only a verdict ends with the exit code of a verdict.
"""

from __future__ import annotations

import errno
import os
import sys

from flipguard.cli import output
from flipguard.cli.arguments import flags_of, use_flags, with_flags
from flipguard.errors import FlipguardError, InputError, printable

# Loading the libraries alone needs more.
LEAST_ADDRESS_SPACE = 512 << 20
# These may be empty: a table that pandas wrote with its index has a column without a name.
COLUMN_FLAGS = frozenset(
    {"--by", "--cluster", "--correct", "--id", "--label", "--label-new", "--label-old", "--target"}
)
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_JUDGED, INTERRUPTED = output.NOT_DELIVERED, 130


def main() -> None:
    """Run the command line and exit; the codes 0, 1 and 3 come from the command alone.

    Python exits with 1 after an uncaught error, which the caller of a gate would read as FAIL. So
    every error, including one that is not an `Exception`, becomes one sentence and exit code 2.
    """
    try:
        output.make_ready()
        _check_address_space()
        arguments = sys.argv[1:]
        _refuse_empty(arguments)
        import typer

        from flipguard.cli.commands import app

        # Not `app()`, which would choose other exit codes for a broken pipe and an interrupt.
        command = typer.main.get_command(app)
        use_flags(flags_of(command, arguments))
        code = 0
        try:
            with command.make_context("flipguard", arguments) as context:
                command.invoke(context)
        except typer.Exit as end:
            code = end.exit_code
    except BaseException as problem:
        code = 0 if _is_help_cut_short(problem) else _explained(problem)
    raise SystemExit(output.flushed(code))


def _check_address_space() -> None:
    """Refuse a memory limit under which a library ends the process: OpenBLAS exits with 1."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        allowed, _ = resource.getrlimit(kind)
        if allowed != resource.RLIM_INFINITY and allowed < LEAST_ADDRESS_SPACE:
            raise InputError(
                f"Expected a limit on memory (ulimit) of at least {LEAST_ADDRESS_SPACE >> 20} MB, "
                f"but it is {allowed >> 20} MB; raise it."
            )


def _refuse_empty(arguments: list[str]) -> None:
    """Refuse an empty argument, as from an unset shell variable: as a path it means this folder."""
    for before, given in zip(["", *arguments], arguments, strict=False):
        flag, value = before, given
        if given.startswith("--") and "=" in given:
            flag, _, value = given.partition("=")
        if not value and flag not in COLUMN_FLAGS:
            after = f"the argument after {printable(flag)!r}"
            what = f"`{flag}`" if flag.startswith("--") else after
            raise InputError(f"Expected {what} to have a value, but it is empty; give one.")


def _is_help_cut_short(problem: BaseException) -> bool:
    """Return whether the reader of a help text closed the pipe early, as `| head` does."""
    # Only for help: a command that could not write its result may not end with the code of a pass.
    if "--help" not in sys.argv[1:]:
        return False
    # rich raises SystemExit in place of the error; a flush by click raises the error itself.
    broken = isinstance(problem, BrokenPipeError) or (
        isinstance(problem, SystemExit) and isinstance(problem.__context__, BrokenPipeError)
    )
    if broken:
        output.silence(sys.stdout)
    return broken


def _explained(problem: BaseException) -> int:
    """Print why there is no result, and return the exit code."""
    code = INTERRUPTED if isinstance(problem, KeyboardInterrupt) else NOT_JUDGED
    try:
        if os.environ.get("FLIPGUARD_TRACEBACK"):
            import traceback

            output.say("".join(traceback.format_exception(problem)).rstrip())
        else:
            output.say(_sentence(problem))
    except BaseException:  # noqa: S110
        # No memory may be left for a sentence, or Ctrl-C may come again: the code says enough.
        pass
    return code


def _sentence(problem: BaseException) -> str:
    if isinstance(problem, FlipguardError):
        # The sentence may quote a file, whose control characters must not reach the terminal.
        return f"flipguard: {printable(with_flags(str(problem)), longest=20_000)}"
    if isinstance(problem, KeyboardInterrupt):
        return "flipguard: interrupted."
    if isinstance(problem, MemoryError):
        return "flipguard: there is not enough memory; free some, or use smaller inputs."
    if isinstance(problem, OSError) and problem.filename is not None:
        name = printable(str(problem.filename))
        return f"flipguard: {name} cannot be used ({problem.strerror}); check the path."
    if isinstance(problem, OSError) and problem.errno in FULL:
        return (
            f"flipguard: writing failed ({problem.strerror}); free some space, or write elsewhere."
        )
    if hasattr(problem, "format_message"):  # a mistake in the command line
        return _usage(problem)
    if isinstance(problem, SystemExit) and isinstance(problem.__context__, BrokenPipeError):
        return ""  # rich ends like this: the help that answers a lack of arguments was not read
    return (
        f"flipguard: this is a bug ({type(problem).__name__}: {printable(str(problem))}); "
        "please report it with the output of the same command under FLIPGUARD_TRACEBACK=1."
    )


def _usage(problem: BaseException) -> str:
    """Return click's error and the usage of the command, on one line."""
    message = getattr(problem, "format_message")()  # noqa: B009
    context = getattr(problem, "ctx", None)
    if type(problem).__name__ == "NoArgsIsHelpError" or context is None:
        return message and f"flipguard: {message}"  # the help was printed already
    message = message.rstrip(".")
    if message.startswith("Got unexpected extra argument"):
        message += "; put a pattern of files in quotes, so that it is one argument"
    stop = "" if message.endswith("?") else "."
    text = f"{message}{stop} {context.get_usage()}; see `{context.command_path} --help`."
    return f"flipguard: {printable(' '.join(text.split()), longest=2_000)}"
