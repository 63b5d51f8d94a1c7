"""The mapping of all methods by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from flipguard.errors import InputError, listed, nearest
from flipguard.methods.base import Method
from flipguard.methods.baselines import BCT, BU_CR, RACT
from flipguard.methods.codistillation import CODISTILL_CE, CODISTILL_L1, CODISTILL_SKL
from flipguard.methods.distillation import (
    FD_KL,
    FD_LM,
    KD,
    LABEL_MIX,
    MUSCLE,
    NAIVE,
    NEW_ERROR,
    STRICT_IMITATION,
)
from flipguard.methods.elodi import ELODI
from flipguard.methods.near_weights import EWC, L2_SP, MIXOUT
from flipguard.methods.without_old import DROPOUT, ENSEMBLE, ENTROPY, NONE, SKL

_ROWS = (
    NONE,
    DROPOUT,
    NAIVE,
    KD,
    FD_KL,
    FD_LM,
    BCT,
    RACT,
    BU_CR,
    ENSEMBLE,
    ELODI,
    ENTROPY,
    SKL,
    CODISTILL_CE,
    CODISTILL_SKL,
    CODISTILL_L1,
    NEW_ERROR,
    STRICT_IMITATION,
    MUSCLE,
    L2_SP,
    EWC,
    MIXOUT,
    LABEL_MIX,
)
METHODS: Mapping[str, Method] = MappingProxyType({row.name: row for row in _ROWS})


def method_of(name: str) -> tuple[Method, dict[str, str]]:
    """Return the method of a name, and the options that the name sets.

    ``codistill-skl+entropy`` is ``codistill-skl`` with an entropy regulariser.

    >>> method_of("codistill-skl+entropy")[1]
    {'plus': 'entropy'}
    """
    base, plus, extra = name.partition("+")
    method = METHODS.get(base)
    if method is None:
        hint = nearest(base, METHODS, all_in="`flipguard methods` lists all")
        raise InputError(f"Expected a method, but got {listed([name])}; {hint}")
    if not plus:
        return method, {}
    if not any(option.name == "plus" and extra in option.choices for option in method.options):
        raise InputError(
            f"Expected `{base}` without an addition, but got '+{extra}'; only co-distillation "
            "takes +entropy or +skl, such as codistill-skl+entropy."
        )
    return method, {"plus": extra}
