"""Which settings the scale `waves` has: tried on samples and seeds that no study shows.

    python benchmarks/waves_search.py --draws 5 --out benchmarks/results/waves_search.json
    python benchmarks/waves_search.py --draws 4 --second \\
        --out benchmarks/results/waves_search_second.json

The data are other draws of MNIST-1D (`seed=1`, `seed=2`, …): other training and test samples than
those of the scale, which are of `seed=0` (`studies/scales.toml`). Rates here are those of the other
draw's test samples, so they are the validation data of the scale. Model seeds start at 5,001.

Written down before the first run:

1. PCT and ELODI. The regime is given: 40,000 training samples, `corr_noise_scale=0.45`, augmented,
   `mlp-bn` of two layers, SGD with Nesterov momentum 0.9, learning rate 0.1, one epoch of warm-up
   and cosine, weight decay 5e-4 on matrices, batches of 200, 20 epochs. It is kept if the control's
   error is between 18 and 30 % and its NFR between 4 and 6 %.
2. Strengths, once for the whole scale, on the update from 320 to 512 units: of the strengths below
   with a mean error of at most the control's plus 0.25 points, the one with the lowest mean NFR; if
   no strength keeps that error, the one with the lowest error. ELODI's alpha = 0.8, dropout 0.2 and
   the focal weights 1 and 5 are the papers' own. K = 10 would be all ten classes, so there is none.
3. The churn paper. Of the recipes below whose control has an error below 35 %, and at their best
   beta (the lowest mean churn at an error of at most the control's), the recipe with the lowest
   ratio of co-distillation's churn to the control's. Churn is that between independent trainings.
   The strengths of the entropy terms and of codistill-ce are then chosen by the same rule at that
   recipe (`--second`, which also tries stronger weights where the strongest one was best).
4. Roles. A net is used if its mean error is below 45 %: another family (`conv1d`), a larger net,
   and a weak one.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from flipguard.comparison import compare
from flipguard.predictions.read import read_predictions
from flipguard.runs.config import Config, from_dict
from flipguard.runs.folder import is_finished
from flipguard.training.jobs import train_job_for
from flipguard.worker_pool import Ending, Job, PoolMonitor, PoolSettings, WorkerPool

FIRST_SEED = 5001
OLD, NEW = "mlp-bn:hidden=320", "mlp-bn:hidden=512"
WAVES: dict[str, Any] = {
    "epochs": 20,
    "batch_size": 200,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "schedule": "cosine",
    "warmup": 1.0,
    "augment": "shift-scale-noise:shift=3,scale=0.1,noise=0.05",
}
STRENGTHS: dict[str, tuple[dict[str, Any], ...]] = {
    "none": ({},),
    "fd-lm": tuple({"weight": weight} for weight in (0.03, 0.1, 0.3, 1.0)),
    "fd-kl": tuple({"weight": weight} for weight in (0.03, 0.1, 0.3, 1.0)),
    "kd": tuple({"weight": weight} for weight in (0.1, 0.3, 1.0, 3.0)),
    "bct": tuple({"weight": weight} for weight in (0.3, 1.0, 3.0)),
    "ract": tuple({"weight": weight} for weight in (0.3, 1.0, 3.0)),
    "bu-cr": tuple({"cost_ratio": ratio} for ratio in (1.5, 2.5, 5.0)),
    "naive": ({"weight": 1.0},),
    "elodi": ({"members": 8, "alpha": 0.8},),
}
CHURN_RECIPES: dict[str, dict[str, Any]] = {
    "waves": {"train": 40_000, "recipe": {}},
    "waves, 20,000 samples, 40 epochs": {"train": 20_000, "recipe": {"epochs": 40}},
    "4,000 samples, 100 epochs": {"train": 4_000, "recipe": {"epochs": 100}},
    "4,000 samples, 100 epochs, decay 5e-3": {
        "train": 4_000,
        "recipe": {"epochs": 100, "weight_decay": 5e-3},
    },
    "4,000 samples, 100 epochs, not augmented": {
        "train": 4_000,
        "recipe": {"epochs": 100, "augment": "none"},
    },
    "4,000 samples, 100 epochs, AdamW": {
        "train": 4_000,
        "recipe": {
            "epochs": 100,
            "optimizer": "adamw",
            "learning_rate": 1e-2,
            "weight_decay": 0.3,
        },
    },
    "1,000 samples, 200 epochs, AdamW, 64 units": {
        "train": 1_000,
        "model": "mlp:hidden=64",
        "noise": 0.25,
        "recipe": {
            "epochs": 200,
            "batch_size": 100,
            "optimizer": "adamw",
            "learning_rate": 2e-2,
            "weight_decay": 0.3,
            "clip": 1.0,
        },
    },
    "1,000 samples, 200 epochs, AdamW": {
        "train": 1_000,
        "noise": 0.25,
        "recipe": {
            "epochs": 200,
            "batch_size": 100,
            "optimizer": "adamw",
            "learning_rate": 1e-2,
            "weight_decay": 0.3,
        },
    },
    "4,000 samples, 100 epochs, conv1d": {
        "train": 4_000,
        "model": "conv1d:width=25",
        "recipe": {"epochs": 100},
    },
}
BETAS = (0.3, 1.0, 3.0)
CO_DISTILLED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("none", {}),
    *(("codistill-skl", {"beta": beta}) for beta in BETAS),
)
# The second part: the recipe that the rule chose, by more methods.
CHOSEN = "1,000 samples, 200 epochs, AdamW"
SECOND_STRENGTHS: dict[str, tuple[dict[str, Any], ...]] = {
    "none": ({},),
    "ract": ({"weight": 6.0}, {"weight": 12.0}),
}
SECOND_CHURN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("none", {}),
    ("codistill-skl", {"beta": 1.5}),
    ("codistill-skl", {"beta": 2.0}),
    *(("codistill-ce", {"beta": beta}) for beta in BETAS),
    *(("entropy", {"alpha": alpha}) for alpha in (0.05, 0.15, 0.3)),
    *(("skl", {"alpha": alpha}) for alpha in (0.02, 0.05, 0.15)),
    *(("codistill-skl", {"beta": 1.0, "plus": "entropy", "alpha": a}) for a in (0.05, 0.15, 0.3)),
)
ROLES = ("conv1d:width=25", "conv1d:width=50", "mlp-bn:hidden=1024", "mlp-bn:hidden=128")


@dataclass(frozen=True)
class Trial:
    """One training, and what it is compared with."""

    part: str  # "updates", "churn" or "roles"
    name: str
    method: str
    options: dict[str, Any] = field(hash=False)
    seed: int
    config: Config = field(hash=False)
    folder: Path
    old: Path | None = None


def settings(
    model: str, draw: int, seed: int, method: str, options: dict[str, Any], **more: Any
) -> dict[str, Any]:
    train, noise = more.pop("train", 40_000), more.pop("noise", 0.45)
    recipe = {**WAVES, **more.pop("recipe", {})}
    return {
        "data": f"mnist1d:train={train},test=10000,corr_noise_scale={noise},seed={draw}",
        "model": model,
        "method": method,
        "options": options,
        "recipe": recipe,
        "seeds": {"seed": seed},
        "machine": {"measure_every": recipe["epochs"], "threads": 1},
        **more,
    }


def trials(out: Path, draws: int, *, second: bool) -> Iterator[Trial]:
    strengths = SECOND_STRENGTHS if second else STRENGTHS
    recipes = {CHOSEN: CHURN_RECIPES[CHOSEN]} if second else CHURN_RECIPES
    for draw in range(1, draws + 1):
        seed = FIRST_SEED + draw
        old = out / f"old-{draw}"
        yield Trial(
            "updates",
            "old",
            "none",
            {},
            seed,
            from_dict(settings(OLD, draw, seed, "none", {})),
            old,
        )
        for method, choices in strengths.items():
            for index, options in enumerate(choices):
                against = {} if method in ("none", "elodi") else {"old": [str(old)]}
                values = settings(NEW, draw, 1000 + seed, method, options, **against)
                folder = out / f"{method}-{index}-{draw}"
                yield Trial(
                    "updates", method, method, options, seed, from_dict(values), folder, old
                )
        if second:
            continue
        # ELODI's old model was trained with ELODI, too.
        values = settings(OLD, draw, seed, "elodi", STRENGTHS["elodi"][0])
        yield Trial(
            "updates",
            "elodi old",
            "elodi",
            STRENGTHS["elodi"][0],
            seed,
            from_dict(values),
            out / f"elodi-old-{draw}",
        )
        for index, model in enumerate(ROLES):
            values = settings(model, draw, seed, "none", {})
            yield Trial(
                "roles", model, "none", {}, seed, from_dict(values), out / f"role-{index}-{draw}"
            )
    for place, (name, kind) in enumerate(recipes.items()):
        for draw, index in product(range(1, draws + 1), range(2)):  # two independent trainings
            seed = FIRST_SEED + 100 * index + draw
            for number, (method, options) in enumerate(SECOND_CHURN if second else CO_DISTILLED):
                more = {"model": NEW, **kind}
                values = settings(more.pop("model"), draw, seed, method, options, **more)
                folder = out / f"churn-{place}-{number}-{draw}-{index}"
                yield Trial("churn", name, method, options, seed, from_dict(values), folder)


class Told(PoolMonitor):
    """Prints what could not be trained."""

    def ended(self, job: Job | None, ending: Ending) -> None:
        if ending.kind not in ("finished", "stopped") and job is not None:
            print(f"{Path(job.key).name}: {ending.kind}: {ending.text[-300:]}", flush=True)


def predictions(run: Path) -> Any:
    return read_predictions(run / "predictions" / "test.npz")


def rates(old: Path, new: Path) -> dict[str, float]:
    result = compare(old=predictions(old), new=predictions(new))
    names = ("error_rate_old", "error_rate_new", "negative_flip_rate", "churn")
    return {name: round(result[name].value, 5) for name in names}


def update_rows(done: Iterable[Trial]) -> Iterator[dict[str, Any]]:
    for trial in done:
        if trial.part != "updates" or trial.old is None:
            continue
        old = trial.old
        if trial.method == "elodi":
            old = trial.old.with_name(trial.old.name.replace("old", "elodi-old"))
        if is_finished(old):
            yield {
                "part": "updates",
                "method": trial.method,
                "options": trial.options,
                "seed": trial.seed,
                **rates(old, trial.folder),
            }


def churn_rows(done: Iterable[Trial]) -> Iterator[dict[str, Any]]:
    alike: defaultdict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for trial in done:
        if trial.part == "churn":
            data = trial.config.data
            alike[trial.name, trial.method, json.dumps(trial.options), data].append(trial)
    for (name, method, options, _), some in alike.items():
        for first, second in combinations(some, 2):
            yield {
                "part": "churn",
                "recipe": name,
                "method": method,
                "options": json.loads(options),
                "seed": first.seed,
                **rates(first.folder, second.folder),
            }


def role_rows(done: Iterable[Trial]) -> Iterator[dict[str, Any]]:
    for trial in done:
        if trial.part == "roles":
            row = rates(trial.folder, trial.folder)
            yield {
                "part": "roles",
                "model": trial.name,
                "seed": trial.seed,
                "error_rate": row["error_rate_new"],
            }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line per setting: means over the draws, and ratios to the control."""
    groups: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        what = row.get("recipe") or row.get("model") or ""
        key = (row["part"], what, row.get("method", ""), json.dumps(row.get("options", {})))
        groups[key].append(row)
    control: dict[tuple[str, str], dict[str, float]] = {}
    for (part, what, method, options), some in groups.items():
        if part == "roles":
            yield f"{part:8} {what:45} error {100 * fmean(r['error_rate'] for r in some):5.2f}"
            continue
        error = fmean((r["error_rate_old"] + r["error_rate_new"]) / 2 for r in some)
        if part == "updates":
            error = fmean(r["error_rate_new"] for r in some)
        metric = "negative_flip_rate" if part == "updates" else "churn"
        value = fmean(r[metric] for r in some)
        if method == "none":
            control[part, what] = {"error": error, "value": value}
        usual = control.get((part, what), {"error": float("nan"), "value": float("nan")})
        yield (
            f"{part:8} {what:45} {method:14} {options:34} n={len(some)} error {100 * error:5.2f} "
            f"({100 * (error - usual['error']):+5.2f}) {metric} {100 * value:5.2f} "
            f"ratio {value / usual['value']:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--second", action="store_true", help="the second part of rule 3")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--epochs", type=int, help="fewer epochs, to try the script")
    given = parser.parse_args()
    if given.epochs:
        WAVES["epochs"] = given.epochs
        for kind in CHURN_RECIPES.values():
            kind["recipe"]["epochs"] = given.epochs
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        planned = list(trials(Path(folder), given.draws, second=given.second))
        # One seed of everything first, so that a search that is cut short is still balanced.
        planned.sort(key=lambda trial: trial.seed % 100)
        jobs = [
            train_job_for(
                trial.config,
                trial.folder,
                after=[trial.old] if trial.config.old and trial.old else [],
            )
            for trial in planned
        ]
        gpus = ("0",) if torch.cuda.is_available() else ()
        pool = WorkerPool(PoolSettings(processes=given.processes, threads=1, gpus=gpus))
        deadline = began + 60 * given.minutes
        pool.run(jobs, monitor=Told(), deadline=deadline)
        done = [trial for trial in planned if is_finished(trial.folder)]
        rows = [*update_rows(done), *churn_rows(done), *role_rows(done)]
    device = torch.cuda.get_device_name() if gpus else f"{os.cpu_count()} CPU cores"
    spent = time.monotonic() - began
    document = {
        "device": device,
        "torch": torch.__version__,
        "command": f"python benchmarks/waves_search.py --draws {given.draws}"
        + " --second" * given.second,
        "seconds": round(spent, 1),
        "trained": len(done),
        "planned": len(planned),
        "rows": rows,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    for line in table(rows):
        print(line)
    print(f"{len(done)} of {len(planned)} trained in {spent:.0f} s on {device}")


if __name__ == "__main__":
    main()
