"""The page about how often the intervals are right."""

from __future__ import annotations

import re
from statistics import median

from pages.places import committed

INTRODUCTION = """# How often the intervals are right

Measured by `{command}` (seed {seed}): {designs:,} designs. In each design the true value is known, and
{draws:,} or more test sets were simulated. *Exact* means that nothing was simulated: the probabilities of all possible
tables of counts were added up instead.

- **Coverage**: the share of intervals that contain the true value. The promise holds if it is at least the confidence minus 2 points.
- **Wrong pass**: the true value equals the limit of a rule. This is the share of intervals that lie completely on the good side of the limit, so that the rule passes. It should be half of the error rate: 2.5 % at a confidence of 95 %. The promise holds if it is at most 1.6 times that: 4 % at 95 %.
- **Family-wise error**: no group, rule or retrain gets worse. This is the share of updates in which at least one of them still fails. The promise holds if it is at most 5 %. A correction for 1,000 groups needs a confidence of 99.995 % for one group, and at that level errors are too rare to simulate. There, the probabilities of all tables are added up, and the error of the family follows from that of one group.
- **Decided**: the share of test sets of the stated size on which the gate decides.

Shares of simulated test sets vary by chance, so each bound has a tolerance of two standard errors. The tables also show the width of the intervals, because a very wide interval keeps its promise but says little.

## The worst design of each metric
"""

# A test evaluates the lines with an equals sign.
PAIR_OF_ROWS = """
The interval of a pair with n seeds, from its differences of the two rows seed by seed:

```text
variance   = (d · m + (n − 1) · s²) / (d + n − 1)
half_width = t · √(variance / n)
```

Here s² is the variance of the n differences, m is the mean of s² over all pairs of the metric, and t is the quantile of
Student's t with d + n − 1 degrees of freedom. The interval is the mean difference ± the half width. With d = 0 this is
Student's t of the pair alone.
"""


def calibration_page() -> str:
    """Return the page, from the committed rows."""
    document = committed("calibration")
    rows = document["rows"]
    lines = INTRODUCTION.format(**document | {"designs": len(rows)}).splitlines()
    if document["quick"]:
        lines[2:2] = [
            "**This is a trial run with few draws and few designs. Its numbers are not results.**",
            "",
        ]
    lines += [
        "",
        "| metric | promise | nominal | measured | result | design | n | median width | confidence |",
        "|---|---|---:|---:|---|---|---:|---:|---:|",
    ]
    for row in document["worst"]:
        kept = row["kept"][row["promise"]]
        told = "holds" if kept["holds"] else f"**fails by {_points(kept['short'])}**, see below"
        lines.append(
            f"| {row['metric']} | {row['promise']} | {_percent(kept['nominal'])} "
            f"| {_percent(kept['measured'])} | {told} | {row['design']} | {row['n']:,} "
            f"| {_width(row['width'])} | {_percent(row['confidence'])} |"
        )
    lines += [*_not_kept(rows), *_cluster_rivals(rows), *_every(rows), *_gate(rows), *_few_seeds()]
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    """One decimal, but six digits for a corrected level, which is close to 100 %."""
    return f"{100 * share:.1f} %" if share < 0.9905 else f"{100 * share:.6g} %"


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def _width(width: float | None) -> str:
    if width is None:
        return ""
    return f"{width:,.0f}" if width >= 10 else f"{width:.2g}"


def _not_kept(rows: list[dict]) -> list[str]:
    """Return every row that misses its bound, by how much, and what flipguard prints in that case."""
    missed = [
        (row, promise, kept)
        for row in rows
        for promise, kept in row["kept"].items()
        if not kept["holds"]
    ]
    lines = ["", "## Where a promise is not kept", ""]
    if not missed:
        return [*lines, "All promises are kept in these designs."]
    lines += [
        "| metric | promise | measured | misses its bound by | design | n | what flipguard prints |",
        "|---|---|---:|---:|---|---:|---|",
    ]
    for row, promise, kept in missed:
        printed = row["printed"] or "the interval, without a warning"
        lines.append(
            f"| {row['metric']} | {promise} | {_percent(kept['measured'])} | {_points(kept['short'])} "
            f"| {row['design']} | {row['n']:,} | {printed} |"
        )
    return lines


def _cluster_rivals(rows: list[dict]) -> list[str]:
    """Compare the chosen interval of a clustered rate with the ones that were not chosen."""
    rows = [
        row
        for row in rows
        if row["metric"] == "negative_flip_rate, clustered" and row["confidence"] == 0.95
    ]
    if not rows:
        return []
    chosen = {"measured": "measured", "width": "width"}
    methods = [
        "one more cluster (chosen)",
        *dict.fromkeys(m for row in rows for m in row["rivals"]),
    ]
    lines = [
        "",
        "## Rows in clusters: the alternatives",
        "",
        f"Results over the {len(rows)} designs of a clustered rate at a confidence of 95 %, within the bounds for which the interval is made. The width is the median width divided by that of the chosen method on the same design. A narrower interval is better only if it has few wrong passes. Weighting clusters by their rows is shown if their sizes differ; with equal sizes it is the chosen method. The alternatives were measured on the first 1,000 draws (weighting by rows: 100). The worst wrong pass is the largest of many measured shares, so by chance it is larger than the true one.",
        "",
        "| method | worst wrong pass | designs above 4 % | median relative width | at most 10 clusters | 100 and more |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for method in methods:
        found = [
            (row, row["rivals"].get(method, chosen if method == methods[0] else None))
            for row in rows
        ]
        pairs = [(row, row if one is chosen else one) for row, one in found if one is not None]
        shares = [one["measured"] for _, one in pairs]
        few, many = ([p for p in pairs if test(p[0])] for test in (_few_clusters, _many_clusters))
        widths = (f"{_relative_width(part)}" for part in (pairs, few, many))
        above = sum(share > 0.04 for share in shares)
        lines.append(
            f"| {method} | {_percent(max(shares))} | {above} of {len(shares)} | {' | '.join(widths)} |"
        )
    return lines


def _clusters(row: dict) -> int:
    """The number of clusters, read from the name of a design."""
    return int(re.search(r"([\d,]+) (?:equal )?clusters", row["design"])[1].replace(",", ""))


def _few_clusters(row: dict) -> bool:
    return _clusters(row) <= 10


def _many_clusters(row: dict) -> bool:
    return _clusters(row) >= 100


def _relative_width(pairs: list[tuple[dict, dict]]) -> str:
    ratios = [one["width"] / row["width"] for row, one in pairs if one["width"] is not None]
    return f"{median(ratios):.2f}" if ratios else ""


def _every(rows: list[dict]) -> list[str]:
    """One table per metric."""
    lines = ["", "## Every design", ""]
    lines += [
        "*Above* and *below* are the shares of intervals that are completely above or below the true value. "
        "The last column gives the measured share of each alternative, with its median width in brackets.",
    ]
    for metric in dict.fromkeys(row["metric"] for row in rows):
        if metric.startswith("gate on"):
            continue
        lines += [
            "",
            f"### {metric}",
            "",
            "| design | n | confidence | promise | measured | above | below | median width | undefined | draws | alternatives |",
            "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---|",
        ]
        lines += [_line(row) for row in rows if row["metric"] == metric]
    return lines


def _line(row: dict) -> str:
    above, below = (
        "" if row[side] is None else f"{100 * row[side]:.3g} %" for side in ("above", "below")
    )
    rivals = ", ".join(
        f"{name} {_percent(rival['measured'])} ({_width(rival['width'])})"
        for name, rival in row["rivals"].items()
    )
    mark = "" if all(kept["holds"] for kept in row["kept"].values()) else " **not kept**"
    draws = "exact" if row.get("exact") else f"{row['draws']:,}"
    return (
        f"| {row['design']} | {row['n']:,} | {_percent(row['confidence'])} | {row['promise']}{mark} "
        f"| {_percent(row['measured'])} | {above} | {below} | {_width(row['width'])} "
        f"| {_percent(row['undefined'])} | {draws} | {rivals} |"
    )


def _gate(rows: list[dict]) -> list[str]:
    lines = [
        "",
        "## How often the gate is wrong",
        "",
        "The same, measured with complete policies: limits that equal the true value, and updates that change nothing.",
        "",
        "| metric | design | n | promise | bound | measured |",
        "|---|---|---:|---|---:|---:|",
    ]
    for row in rows:
        if row["metric"].startswith("gate on"):
            mark = "" if row["kept"][row["promise"]]["holds"] else " **not kept**"
            most = 0.04 if row["promise"] == "wrong pass" else row["nominal"]
            lines.append(
                f"| {row['metric'].removeprefix('gate on ')} | {row['design']} | {row['n']:,} "
                f"| {row['promise']}{mark} | {_percent(most)} | {_percent(row['measured'])} |"
            )
    return lines


def _few_seeds() -> list[str]:
    """Return how often two rows of a study are separated, and how often wrongly, by the weight of the shared variance."""
    document = committed("few_seeds")
    lines = [
        "",
        "## Studies with few seeds",
        "",
        f"Measured by `{document['command']}`, on the {document['rows'][0]['pairs']} pairs of rows that the studies of MNIST-1D "
        "with ten seeds had at that time, including pairs that two tables share and pairs that are no longer counted.",
        "",
        "- *Shared degrees of freedom*: the variance of a pair is averaged with the mean variance of all pairs of its metric. "
        "This mean counts as that many degrees of freedom, `d` below. [Studies](../guides/studies.md) use none with ten or more "
        "seeds (each pair alone) and one with fewer.",
        "- *By chance*: the share of pairs that are decided although they do not differ (drawn with the covariance of the ten "
        "seeds). The next two columns are about pairs that vary more than the mean, and twice as much.",
        "- *Decided*: the share of real pairs that are decided by this number of the ten seeds.",
        "- *Other order*: the share of real pairs that are decided in the other order than by the remaining seeds (each pair alone).",
        *PAIR_OF_ROWS.splitlines(),
        "",
        "| seeds | shared degrees of freedom | by chance | by chance, noisy | by chance, noisiest | decided | other order |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        worth = row["rule"].removeprefix("shared, ").replace("own", "none")
        # With all ten seeds there are no remaining ones.
        wrong = f"{row['wrong']:.3%}" if row["seeds"] < 10 else ""
        shares = (
            f"{row[key]:.1%}" for key in ("chance", "chance_noisy", "chance_noisiest", "decided")
        )
        lines.append(f"| {row['seeds']} | {worth} | {' | '.join(shares)} | {wrong} |")
    return lines
