"""The page of how often the intervals are right."""

from __future__ import annotations

from pages.places import committed


def calibration_page() -> str:
    """How often intervals cover and the gate errs, from the committed rows."""
    document = committed("calibration")
    lines = [
        "# How often the intervals are right",
        "",
        f"Measured by `{document['command']}` (seed {document['seed']}), by drawing test sets",
        "from known truths. A 95 % interval should hold the truth in 95 % of them.",
        "",
        "| quantity | settings | lowest | highest | lowest of the rejected methods |",
        "|---|---:|---:|---:|---|",
    ]
    for quantity in dict.fromkeys(row["quantity"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["quantity"] == quantity]
        covers = [row["coverage"] for row in rows]
        rivals = {name for row in rows for name in row["rejected"]}
        worst = {
            name: min(row["rejected"][name] for row in rows if name in row["rejected"])
            for name in sorted(rivals)
        }
        told = ", ".join(f"{name} {100 * value:.1f} %" for name, value in worst.items())
        ends = f"{100 * min(covers):.1f} % | {100 * max(covers):.1f} %"
        lines.append(f"| {quantity} | {len(rows)} | {ends} | {told} |")
    lines += [
        "",
        "## Every setting",
        "",
        "| quantity | setting | n | expected count | method | covers |",
        "|---|---|---:|---:|---|---:|",
    ]
    for row in document["rows"]:
        lines.append(
            f"| {row['quantity']} | {row['setting']} | {row['n']:,} | {row['expected_count']} "
            f"| {row['method']} | {100 * row['coverage']:.1f} % |"
        )
    lines += [
        "",
        "## How often the gate errs",
        "",
        "| world | n | pass | fail | inconclusive | must be rare |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in document["gate"]:
        rare = row["must_be_rare"]
        told = "" if rare is None else f"{rare}: {100 * row['rate']:.1f} %"
        shares = (f"{100 * row[verdict]:.1f} %" for verdict in ("pass", "fail", "inconclusive"))
        lines.append(f"| {row['setting']} | {row['n']:,} | {' | '.join(shares)} | {told} |")
    return "\n".join([*lines, *_few_seeds()]) + "\n"


def _few_seeds() -> list[str]:
    """How often two rows of a study are told apart, and how often wrongly, by the worth of what pairs share."""
    document = committed("few_seeds")
    lines = [
        "",
        "## Studies with few seeds",
        "",
        f"Measured by `{document['command']}`, on the {document['rows'][0]['pairs']} pairs of rows that the studies of MNIST-1D "
        "with ten seeds had when it was measured, also those that two tables share and those that are no longer counted. The variance of a pair counts beside the mean of all pairs of its metric, which is worth some degrees "
        "of freedom: none, if each is judged by itself, as in [studies](../guides/studies.md) with ten seeds or more, and one "
        "in studies with fewer. *By chance* are decided, "
        "of pairs that do not differ (drawn with the covariance of the ten seeds): of all, and of those that vary more than "
        "the mean, and twice as much. *Decided* are real pairs by as many of the ten seeds; *the other way* than the other "
        "seeds decide, each by itself.",
        "",
        "| seeds | worth | by chance | of noisy ones | of the noisiest | decided | the other way |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        worth = row["rule"].removeprefix("shared, ").replace("own", "none")
        # Of all ten there are no others.
        wrong = f"{row['wrong']:.3%}" if row["seeds"] < 10 else ""
        shares = (
            f"{row[key]:.1%}" for key in ("chance", "chance_noisy", "chance_noisiest", "decided")
        )
        lines.append(f"| {row['seeds']} | {worth} | {' | '.join(shares)} | {wrong} |")
    return lines
