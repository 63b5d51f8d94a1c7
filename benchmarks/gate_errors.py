"""How often the gate errs: worlds that sit exactly on a limit, and updates that change nothing.

A part of `calibration.py`, which runs it and keeps its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flipguard import Policy, Predictions, check
from flipguard.counts import CELLS, FlipCounts, Layout
from flipguard.engines.plan import Counted, CountingPlan, Groups, RowCounts
from flipguard.measuring import judged_counts

Floats = NDArray[np.float64]
Row = dict[str, Any]
LAYOUT = Layout(has_target=True)


def verdict_of(tables: NDArray[np.int64], rule: Mapping[str, Any], *, clustered: bool) -> str:
    """The gate's verdict on counts: (groups, 5), or (clusters, 5) if clustered."""
    values = np.zeros((len(tables), len(LAYOUT.names)), dtype=np.int64)
    values[:, [LAYOUT.names.index(cell) for cell in CELLS]] = tables
    grouped = "by" in rule
    whole = values if clustered else values.sum(axis=0, keepdims=True)
    nobody = Predictions.from_arrays(labels=[0], targets=[0], slices={"group": [0], "cluster": [0]})
    plan = CountingPlan(
        old=nobody,
        new=nobody,
        by=("group",) if grouped else (),
        cluster="cluster" if clustered else None,
    )
    groups = Groups(keys=[f"g{i}" for i in range(len(values))], counts=FlipCounts(LAYOUT, values))
    counted = Counted(
        rows=RowCounts(matched=int(tables.sum())),
        whole=Groups(keys=["all"] * len(whole), counts=FlipCounts(LAYOUT, whole)),
        by={"group": groups} if grouped else {},
    )
    result = judged_counts(counted, plan, confidence=0.95, correction="holm", engine="local")
    return check(result, Policy.from_dict({"rule": [rule]})).verdict


def cells(*, negative: float, positive: float, right: float = 0.8) -> Floats:
    both_wrong = 1.0 - right - positive
    return np.array([right - negative, negative, positive, both_wrong * 0.7, both_wrong * 0.3])


def gate_rows(rng: np.random.Generator, replications: int) -> Iterator[Row]:
    """Each row: how often the verdict was pass, fail and inconclusive, and which must be rare."""
    for n in (200, 1_000, 5_000, 50_000):
        at_limit = cells(negative=0.02, positive=0.03)
        yield measured(
            rng,
            replications,
            n,
            at_limit,
            "NFR at its limit of 2 %",
            {"metric": "negative_flip_rate", "max": 0.02},
            rare="pass",
        )
        yield measured(
            rng,
            replications,
            n,
            cells(negative=0.055, positive=0.05),
            "accuracy gain at its limit of -0.5 points",
            {"metric": "accuracy_gain", "min": -0.005},
            rare="pass",
        )
        relative = 0.02 / (0.8 * (1 - 0.8 + 0.02 - 0.03))
        yield measured(
            rng,
            replications,
            n,
            at_limit,
            f"relative NFR at its limit of {relative:.3f}",
            {"metric": "relative_negative_flip_rate", "max": relative},
            rare="pass",
        )
        yield measured(
            rng,
            replications,
            n,
            cells(negative=0.05, positive=0.05),
            "A/A: two retrains, gain may be -1 point",
            {"metric": "accuracy_gain", "min": -0.01},
            rare="fail",
        )
    for groups in (10, 100):
        for correction in ("none", "holm", "benjamini-hochberg"):
            yield measured(
                rng,
                replications // 5,
                500,
                cells(negative=0.05, positive=0.05),
                f"{groups} groups, each at its limit of 5 %, correction {correction}",
                {
                    "metric": "negative_flip_rate",
                    "max": 0.05,
                    "by": "group",
                    "correction": correction,
                },
                rare="fail" if correction != "none" else None,
                groups=groups,
            )
    yield measured(
        rng,
        replications // 5,
        2_000,
        cells(negative=0.02, positive=0.03),
        "200 clusters of 10 rows (ICC 0.3), NFR at its limit of 2 %",
        {"metric": "negative_flip_rate", "max": 0.02},
        rare="pass",
        clusters=200,
    )


def measured(
    rng: np.random.Generator,
    replications: int,
    n: int,
    chances: Floats,
    setting: str,
    rule: Mapping[str, Any],
    *,
    rare: str | None,
    groups: int = 1,
    clusters: int = 0,
) -> Row:
    verdicts = []
    for _ in range(max(replications, 20)):
        if clusters:
            # Dirichlet cell chances a cluster: concentration 1/ICC - 1 gives that correlation.
            own = rng.dirichlet(chances * (1 / 0.3 - 1), size=clusters)
            tables = np.stack([rng.multinomial(n // clusters, p) for p in own])
        else:
            tables = rng.multinomial(n, chances, size=groups)
        verdicts.append(verdict_of(tables, rule, clustered=bool(clusters)))
    share = {v: verdicts.count(v) / len(verdicts) for v in ("pass", "fail", "inconclusive")}
    return {
        "setting": setting,
        "n": n,
        "groups": groups,
        "replications": len(verdicts),
        **{name: round(value, 4) for name, value in share.items()},
        "must_be_rare": rare,
        "rate": None if rare is None else round(share[rare], 4),
    }


def print_gate_table(rows: list[Row]) -> None:
    print(f"\n{'gate: setting':64} {'n':>6}  pass   fail   open   must be rare")
    for r in rows:
        shares = "  ".join(f"{100 * r[v]:5.1f}" for v in ("pass", "fail", "inconclusive"))
        rare = "" if r["must_be_rare"] is None else f"{r['must_be_rare']} {100 * r['rate']:.1f} %"
        print(f"{r['setting']:64} {r['n']:6} {shares}   {rare}")
