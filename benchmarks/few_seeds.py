"""How often a study's verdict on two rows is wrong with few seeds, by two rules.

    python benchmarks/few_seeds.py --out benchmarks/results/few_seeds.json

`own` is Student's t of each pair alone; `shared` is what studies do, where a pair's variance counts
beside the mean of all pairs (`flipguard.statistics.seeds`), with several worths of that mean; with
ten
seeds they do as `own`. All are
asked about the first ten seeds of the committed results that have so many:

- *by chance*: how many pairs are decided if no two rows differ. Values are drawn from a normal law
  with the covariance that the rows have over their ten seeds, and equal means; 5 % would be right.
  Also of those pairs alone that vary more than the mean of their metric, and twice as much.
- *decided*: how many pairs some of the ten seeds decide, how many of all pairs the other way than
  the other seeds do by the rule `own`, and how many that these leave undecided.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flipguard.statistics.seeds import difference_intervals
from flipguard.studies.agreement import CONFIDENCE
from flipguard.studies.read_study import study_of
from flipguard.studies.results import read_result

Floats = NDArray[np.float64]
STUDIES = Path(__file__).parent / "results" / "studies"
ALL = 10


class Asked:
    """The pairs of a metric of a study: values by row and seed, and which rows are a pair."""

    def __init__(self, values: Floats, pairs: Sequence[tuple[int, int]]) -> None:
        self.values, self.pairs = values, np.array(pairs)

    def apart(self, values: Floats) -> Floats:
        return np.asarray(values[self.pairs[:, 1]] - values[self.pairs[:, 0]])


def asked_of(scale: str) -> list[Asked]:
    found = []
    for path in sorted(STUDIES.glob(f"*.{scale}.json")):
        study = study_of(path.name.removesuffix(f".{scale}.json"))
        result = read_result(path, study)
        by_metric = defaultdict(list)
        for pair in result.agreement().pairs:
            by_metric[pair.metric].append((pair.first, pair.second))
        for metric, pairs in by_metric.items():
            rows = sorted({row for pair in pairs for row in pair})
            values = np.array([result.rows[row].values[metric] for row in rows])
            if values.shape[1] >= ALL and np.isfinite(values).all():
                places = [(rows.index(a), rows.index(b)) for a, b in pairs]
                found.append(Asked(values[:, :ALL], places))
    return found


def by_shared(apart: Floats, shared_degrees: float) -> Floats:
    return np.array(
        difference_intervals(
            list(apart), confidence=CONFIDENCE, shared_degrees=shared_degrees, enough=math.inf
        )
    )


by_own = partial(by_shared, shared_degrees=0.0)


RULES: dict[str, Callable[[Floats], Floats]] = {
    "own": by_own,
    **{
        f"shared, {shared_degrees:g}": partial(by_shared, shared_degrees=shared_degrees)
        for shared_degrees in (1, 2, 3, 4)
    },
}


def signs(limits: Floats) -> NDArray[np.int64]:
    """1 where an interval is above 0, -1 where it is below, else 0."""
    return (limits[:, 0] > 0).astype(np.int64) - (limits[:, 1] < 0).astype(np.int64)


def measured(
    of: list[Asked], seeds: int, draws: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    rows = []
    drawn = {
        id(one): [
            (
                rng.multivariate_normal(
                    np.zeros(len(one.values)), np.cov(one.values), seeds, method="svd"
                ).T,
                rng.choice(ALL, seeds, replace=False),
            )
            for _ in range(draws)
        ]
        for one in of
    }
    for name, rule in RULES.items():
        count: dict[str, int] = defaultdict(int)
        for one in of:
            true = one.apart(one.values).var(axis=1, ddof=1)
            for nothing, some in drawn[id(one)]:
                by_chance = signs(rule(one.apart(nothing))) != 0
                for times, which in ((1, "noisy"), (2, "noisiest")):
                    among = true > times * true.mean()
                    count[f"asked_{which}"] += int(among.sum())
                    count[f"chance_{which}"] += int(by_chance[among].sum())
                said = signs(rule(one.apart(one.values[:, some])))
                others = np.setdiff1d(np.arange(ALL), some)
                sure = signs(by_own(one.apart(one.values[:, others]))) if len(others) > 1 else said
                count["asked"] += len(said)
                count["chance"] += int(by_chance.sum())
                count["decided"] += int(np.count_nonzero(said))
                count["wrong"] += int(np.count_nonzero(said * sure < 0))
                count["too_early"] += int(np.count_nonzero((said != 0) & (sure == 0)))
        share = {
            key: round(count[key] / count["asked"], 5)
            for key in ("chance", "decided", "wrong", "too_early")
        } | {
            f"chance_{which}": round(count[f"chance_{which}"] / count[f"asked_{which}"], 5)
            for which in ("noisy", "noisiest")
        }
        pairs = sum(len(one.pairs) for one in of)
        rows.append({"seeds": seeds, "rule": name, "pairs": pairs} | share)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=200)
    given = parser.parse_args()
    of, rng = asked_of("mnist1d"), np.random.default_rng(0)
    rows = [row for seeds in (2, 3, 5, ALL) for row in measured(of, seeds, given.draws, rng)]
    document = {
        "command": f"python benchmarks/few_seeds.py --out FILE --draws {given.draws}",
        "machine": {"python": platform.python_version(), "numpy": np.__version__},
        "rows": rows,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    print("seeds rule       by chance   noisy  noisiest  decided  other way  of undecided")
    for row in rows:
        print(
            f"{row['seeds']:5} {row['rule']:10} {row['chance']:9.2%} {row['chance_noisy']:7.1%} "
            f"{row['chance_noisiest']:9.1%} {row['decided']:8.1%} {row['wrong']:10.3%} "
            f"{row['too_early']:13.2%}"
        )


if __name__ == "__main__":
    main()
