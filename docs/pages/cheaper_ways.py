"""The measured rows of cheaper ways to run ELODI, compared with eight members."""

from __future__ import annotations

from typing import NamedTuple

from pages.figures import mean, signed
from pages.places import committed, is_committed

CHEAPER = {"mnist1d": "MNIST-1D", "cifar100": "CIFAR-100"}
AFTER_ELODI, AFTER_UNTREATED = "elodi", "untreated"
REMOVED = ("one phase",)  # options that were measured and no longer exist
EIGHT = "fused"  # the way with which the cheaper ones are compared


def cheaper_documents() -> dict[str, dict]:
    """Return the measured documents by data set, without options that were removed."""
    files = {name: f"cheaper_{name}" for name in CHEAPER}
    found = {name: committed(file) for name, file in files.items() if is_committed(file)}
    return {
        name: {**document, "rows": [row for row in document["rows"] if row["way"] not in REMOVED]}
        for name, document in found.items()
    }


def by_way(rows: list[dict]) -> dict[str, list[dict]]:
    """Group rows by way, in the order of the first seed."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["way"], []).append(row)
    return found


def flips_after(rows: list[dict], old: str) -> list[float]:
    return [row["old"][old]["negative_flip_rate"] for row in rows]


def typed(row: dict) -> str:
    """A way as it is typed on the command line."""
    if row["method"] != "elodi":
        return (
            f"`{row['method']}`"
            + {"none": ", the control", "ensemble": " of 8, the upper bound"}[row["method"]]
        )
    options = {name: value for name, value in row["options"].items() if name != "alpha"}
    told = [f"`{name}={str(value).lower()}`" for name, value in options.items()]
    return ", ".join(told + ["`--fuse off`"] * (row["way"] == "one by one"))


class Against(NamedTuple):
    """What a way saves and gives up, compared with eight members of the same seeds: means over the seeds."""

    price: float
    price_of_eight: float
    flips: float  # how much more, as a share
    error: float  # how much more, as a share

    @property
    def saved(self) -> float:
        """How many fewer plain training runs it takes."""
        return self.price_of_eight - self.price

    def told(self) -> str:
        """Its cost and what it gives up, in a few words."""
        return (
            f"{self.price:.1f} training runs instead of {self.price_of_eight:.1f}, NFR {signed(100 * self.flips, 2)} and error "
            f"{signed(100 * self.error, 2)} points"
        )


def against_eight(ways: dict[str, list[dict]], way: str) -> Against | None:
    """Compare a way with eight members. None if it is not ELODI or had other old models."""
    pairs = paired(ways, way)
    if way in ("none", "ensemble", EIGHT) or not pairs:
        return None
    return Against(
        price=mean([a["trainings"] for a, _ in pairs]),
        price_of_eight=mean([b["trainings"] for _, b in pairs]),
        flips=mean(more_flips(pairs)),
        error=mean(more_errors(pairs)),
    )


def measured(*names: str) -> str:
    """Return the results of a way on every data set that has it, in a sentence."""
    told = []
    for name, document in cheaper_documents().items():
        ways = by_way(document["rows"])
        for way in names:
            if way in ways and (found := against_eight(ways, way)) is not None:
                option = f", `{way}`" if len(names) > 1 else ""
                told.append(f"{CHEAPER[name]}{option}: {found.told()}")
    return "; ".join(told)


def paired(ways: dict[str, list[dict]], way: str) -> list[tuple[dict, dict]]:
    """Pair the rows of a way with those of eight members; empty if some have other old models."""
    by_seed = {row["seed"]: row for row in ways[EIGHT]}
    pairs = [
        (row, by_seed[row["seed"]])
        for row in ways[way]
        if row["seed"] in by_seed and _same_old(row, by_seed[row["seed"]])
    ]
    return pairs if len(pairs) == len(ways[way]) else []


def more_flips(pairs: list[tuple[dict, dict]]) -> list[float]:
    return [
        a["old"][AFTER_ELODI]["negative_flip_rate"] - b["old"][AFTER_ELODI]["negative_flip_rate"]
        for a, b in pairs
    ]


def more_errors(pairs: list[tuple[dict, dict]]) -> list[float]:
    return [a["error_rate_new"] - b["error_rate_new"] for a, b in pairs]


def _same_old(one: dict, other: dict) -> bool:
    """Whether two rows were compared with the same old models."""
    return all(
        one["old"][name]["error_rate_old"] == other["old"][name]["error_rate_old"]
        for name in (AFTER_ELODI, AFTER_UNTREATED)
    )
