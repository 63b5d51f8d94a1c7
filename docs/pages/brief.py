"""The page that answers, in a sentence each, what was measured."""

from __future__ import annotations

from collections.abc import Iterator

from flipguard.studies.show import PairTally
from pages.examples import EXAMPLES, mean_of
from pages.figures import signed
from pages.places import committed
from pages.studies import results
from pages.training import epoch_ratios

INTRODUCTION = """# Results in brief

What was measured about flipguard, in one sentence per question. The numbers on this page are computed from the measured
rows. [How results are made](maintainers.md) lists the programs.
"""


def brief_page() -> str:
    """Return the page, from the committed rows of several programs."""
    lines = [INTRODUCTION]
    for heading, answers in (
        ("## Can I trust the numbers?", [_intervals()]),
        ("## How fast is it?", [_counting(), _report(), _loss(), _training()]),
        ("## Does training with flipguard break less?", [*_demo(), _examples()]),
        ("## Do the papers' tables come out here?", [*_papers()]),
    ):
        lines += [heading, "", *(f"- {answer}" for answer in answers), ""]
    return "\n".join(lines)


def _intervals() -> str:
    kept = [found for row in committed("calibration")["rows"] for found in row["kept"].values()]
    holds = sum(found["holds"] for found in kept)
    return (
        f"**Intervals and verdicts.** {holds:,} of {len(kept):,} tested promises hold in simulations with a known true value. "
        "A promise is, for example, that a 95 % interval contains the true value in at least 93 % of cases. "
        "[All designs, and where a promise is not kept](results/calibration.md); "
        "[what the intervals do not cover](statistics.md#what-the-numbers-do-not-cover)."
    )


def _counting() -> str:
    document = committed("evidence")
    section = ""
    for row in document["rows"]:
        section = row.get("section", section)
        if "flipguard" in row["case"] and "seconds" in row:
            return (
                f"**Counting.** {section}: {row['seconds']:.1f} seconds and {row['peak_mib']:,} MiB on "
                f"{document['machine']['cores']} cores. [More sizes and formats](results/evidence.md)."
            )
    raise ValueError(
        "benchmarks/results/evidence.json has no row of flipguard; run benchmarks/evidence.py."
    )


def _report() -> str:
    row = max(committed("report")["rows"], key=lambda row: row["samples"])
    return (
        f"**The report.** A page about {row['samples']:,} samples with {row['flips']:,} flips takes {row['bytes'] / 1e6:.1f} MB "
        f"and responds to a click within {row['seconds_to_answer']:.2f} seconds. [Other sizes](results/report.md)."
    )


def _loss() -> str:
    times = [row["microseconds"] for row in committed("losses-cuda")["rows"]]
    most = max(row["ours compiled"] / row["bare compiled"] for row in times)
    return (
        f"**A loss.** Compiled, a loss takes at most {most:.2f} times as long as its plain formula, compiled as well. "
        "[Each loss](results/losses.md)."
    )


def _training() -> str:
    told = " and ".join(
        f"{sum(ratios) / len(ratios):.2f} ({net})" for net, ratios in epoch_ratios().items()
    )
    return (
        f"**`flipguard train`.** An epoch takes {told} times as long as in a plain PyTorch script. "
        "[How it was compared](results/cifar.md)."
    )


def _demo() -> Iterator[str]:
    rows = committed("demo")["rows"]
    controls = {row["seed"]: row for row in rows if row["update"] == "none"}
    for name in ("fd-lm", "elodi"):
        some = [row for row in rows if row["update"] == name]
        ratios = [
            row["negative_flip_rate"] / controls[row["seed"]]["negative_flip_rate"] for row in some
        ]
        passed = sum(row["verdict"] == "pass" for row in some)
        yield (
            f"**The demo, `{name}`.** Over {len(some)} seeds it breaks {min(ratios):.2f} to {max(ratios):.2f} times as many "
            f"samples as the untreated control, and passes the demo's policy in {passed} of {len(some)}. [Each seed](results/demo.md)."
        )


def _examples() -> str:
    rates, errors = mean_of("negative_flip_rate"), mean_of("error_new")
    told = "; ".join(
        f"{EXAMPLES[name]}: {rate['treated'] / rate['control']:.2f} times as many samples, error "
        f"{signed(errors[name]['treated'] - errors[name]['control'], 1)} points"
        for name, rate in rates.items()
    )
    return (
        f"**Example programs.** The treated updates, compared with their controls, break: {told}. These are small generated "
        "tasks. [Each program and seed](results/examples.md). More: [a text classifier](results/texts.md), and [what cheaper "
        "ELODI gives up](results/cheaper.md)."
    )


def _papers() -> Iterator[str]:
    by_scale: dict[str, list[str]] = {}
    for name, result in results().items():
        by_scale.setdefault(result.scale, []).append(name)
    for scale, names in by_scale.items():
        found = PairTally.of([results()[name] for name in names])
        if found.clear:
            studies = "1 study" if len(names) == 1 else f"{len(names)} studies"
            yield (
                f"**`{scale}`, {studies}.** Of {found.clear} pairs of rows that the papers separate clearly, "
                f"{found.agree} have the same order here, {found.disagree} in the other order, and {found.undecided} "
                "are undecided."
            )
    yield (
        "Some settings were chosen by looking at these tables, so the counts show what is possible at these scales. "
        "[Every table, and what does not hold](results/studies.md)."
    )
