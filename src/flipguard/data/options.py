"""Specs: a name, and the options behind it as ``name:key=value,key=value``."""

from __future__ import annotations

import math
import re

from flipguard.errors import InputError, listed

OPTIONS = re.compile(r"^(?P<name>.*?):(?P<options>[A-Za-z_]\w*=[^:]*)$", re.DOTALL)


class Options:
    """The options of a spec, each taken once; what nobody takes is refused by `finish`.

    >>> options = Options.of("mnist1d:train=800,seed=3")
    >>> options.name, options.whole("train", 4000, least=1), options.whole("seed", 0)
    ('mnist1d', 800, 3)
    >>> options.finish()
    """

    def __init__(self, name: str, given: dict[str, str]) -> None:
        self.name = name
        self._given = dict(given)
        self._known: list[str] = []

    @classmethod
    def of(cls, spec: str) -> Options:
        """Takes a spec apart; a colon with no ``key=`` behind it belongs to the name."""
        found = OPTIONS.match(spec)
        if found is None:
            return cls(spec, {})
        given: dict[str, str] = {}
        for item in found["options"].split(","):
            key, equals, value = (part.strip() for part in item.partition("="))
            if not key or not equals or not value:
                raise InputError(
                    f"Expected the options of `{found['name']}` to be key=value, but got "
                    f"{listed([item])}; write them as name:key=value,key=value."
                )
            if key in given:
                raise InputError(
                    f"Expected every option of `{found['name']}` once, but got {key!r} more than "
                    "once; keep one of them."
                )
            given[key] = value
        return cls(found["name"], given)

    def whole(
        self, key: str, default: int, *, least: int | None = None, most: int = 2**63 - 1
    ) -> int:
        """A whole number from `least` to `most`."""
        text = self._take(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = None
        lowest = -(2**63) if least is None else least
        if value is None or not lowest <= value <= most:
            bound = "" if least is None else f" of at least {least}"
            if value is not None and value > most:
                bound = f" of at most {most}"
            raise self._refused(key, f"a whole number{bound}", text)
        return value

    def number(
        self, key: str, default: float, *, least: float = 0.0, most: float = math.inf
    ) -> float:
        """A finite number from `least` to `most`."""
        text = self._take(key)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most) or math.isinf(value):
            bound = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise self._refused(key, f"a number {bound}", text)
        return value

    def share(self, key: str, default: float) -> float:
        """A share of the samples, above 0 and below 1."""
        value = self.number(key, default, most=1.0)
        if value in (0.0, 1.0):
            raise self._refused(key, "a share above 0 and below 1", f"{value:g}")
        return value

    def one_of(self, key: str, default: str, known: tuple[str, ...]) -> str:
        """One of a few words."""
        text = self._take(key)
        if text is None:
            return default
        if text not in known:
            raise self._refused(key, "one of " + ", ".join(known), text)
        return text

    def text(self, key: str) -> str | None:
        """Any text, or None where the option is not given."""
        return self._take(key)

    def finish(self) -> None:
        """Refuses the options that nobody took."""
        if self._given:
            known = ", ".join(self._known) if self._known else "none"
            raise InputError(
                f"Expected the options of `{self.name}` to be among {known}, but got "
                f"{listed(self._given)}; check its spelling."
            )

    def _take(self, key: str) -> str | None:
        self._known.append(key)
        return self._given.pop(key, None)

    def _refused(self, key: str, rule: str, text: str) -> InputError:
        return InputError(
            f"Expected `{key}` to be {rule}, but got {listed([text])}; change it in the options "
            f"of `{self.name}`."
        )
