"""The cards of the methods."""

from __future__ import annotations

from flipguard.methods import METHODS
from pages.elodi_price import elodi_price

# What a card says below its options.
NOTES = {"elodi": elodi_price}


def methods_page() -> str:
    """A card a method."""
    lines = [
        "# Methods",
        "",
        "What `flipguard train --method` understands; options are set by `--set options.NAME=VALUE`.",
        "`codistill-skl+entropy` and `codistill-skl+skl` add a regulariser. The formulas are on the",
        "[cards of the losses](losses.md). Defaults are flipguard's, and not always a paper's: `fd-lm` and",
        "`elodi` take the mean over classes where the papers print a sum (`options.class_reduction=sum`), so",
        "that their weight and alpha are not comparable; `elodi` takes all classes where its paper has K = 10",
        "(`options.k=10`); `fd-kl` has the factor T² and KL(old, new) where PCT prints KL(new, old) alone; `skl` has a floor",
        "(`options.floor=0` is as printed); `dropout` drops 0.1 where ELODI has 0.2; and `bu-cr` learns from 10 %",
        "fewer samples, which it holds out.",
        "",
        "| method | | paper |",
        "|---|---|---|",
    ]
    for method in METHODS.values():
        lines.append(f"| [`{method.name}`](#{method.name}) | {method.sentence} | {method.paper} |")
    for method in METHODS.values():
        lines += [
            "",
            f"## `{method.name}`",
            "",
            method.sentence,
            "",
            f"- **Paper.** {method.paper}",
        ]
        if method.needs:
            lines.append(f"- **Needs.** {method.needed()}")
        for option in method.options:
            others = f" One of {', '.join(option.choices)}." if option.choices else ""
            lines.append(f"- `{option.name} = {option.default!r}`: {option.sentence}{others}")
        if method.name in NOTES:
            lines += NOTES[method.name]().rstrip().splitlines()
    return "\n".join(lines) + "\n"
