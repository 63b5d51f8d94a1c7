"""Consent to run code: a spec ``python:module:function`` imports and calls what it names.

A run folder names its model by a spec, so loading somebody else's run could run their code. It is
refused without consent. The consent is an environment variable, so that worker processes have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from flipguard.errors import InputError, printable

VARIABLE = "FLIPGUARD_ALLOW_CODE"
PREFIX = "python:"


@contextmanager
def allowing_code(allowed: bool) -> Iterator[None]:
    """Context manager: give the consent, also to processes that are started meanwhile.

    Without `allowed` nothing changes, so that a consent from outside stays.
    """
    before = os.environ.get(VARIABLE)
    if allowed:
        os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if allowed:
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before


def check_code(spec: str, *, allowed: bool = False) -> None:
    """Raise if a model is made by a function and there is no consent to run it.

    >>> check_code("resnet20")
    """
    if not spec.startswith(PREFIX) or allowed or os.environ.get(VARIABLE) == "1":
        return
    raise InputError(
        f"Expected consent to run the code that '{printable(spec)}' names, but got none; if you "
        "trust it, repeat this with `allow_code=True`."
    )
