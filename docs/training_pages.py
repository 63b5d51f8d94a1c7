"""Pages of results about training, each rendered from rows that a program in benchmarks/ wrote."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
NETS = {"resnet20": "ResNet-20", "resnet56": "ResNet-56"}


def cifar_page() -> str:
    """`flipguard train` against a bare script, from the committed rows."""
    document = json.loads((RESULTS / "cifar.json").read_text())
    machine, rows = document["machine"], document["rows"]
    found: dict[tuple[str, int], dict[str, dict]] = {}
    for row in rows:
        found.setdefault((row["net"], row["seed"]), {})[row["way"]] = row
    lines = [
        "# Training against a bare script",
        "",
        f"Measured by `{document['command']}` on one {machine['device']} (torch {machine['torch']}, Python "
        f"{machine['python']}). Both ways train on CIFAR-10 with the preset `{document['preset']}`, in bf16. The bare "
        "script is plain PyTorch written for speed: all images on the GPU, an epoch augmented at once, channels last, a "
        "fused optimizer. They take turns on a machine that does nothing else. The time is of an epoch with its "
        "evaluation; flipguard's epoch also measures 5,000 training samples and keeps a state to resume from.",
        "",
        "| net | seed | error, bare | error, flipguard | epoch, bare | epoch, flipguard | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    ratios: dict[str, list[float]] = {}
    for (net, seed), ways in found.items():
        bare, ours = ways["bare"], ways["flipguard"]
        ratio = ours["epoch_seconds"] / bare["epoch_seconds"]
        ratios.setdefault(net, []).append(ratio)
        lines.append(
            f"| {NETS[net]} | {seed} | {bare['error_rate']:.2%} | {ours['error_rate']:.2%} | "
            f"{bare['epoch_seconds']:.2f} s | {ours['epoch_seconds']:.2f} s | {ratio:.2f} |"
        )
    means = " and ".join(
        f"{sum(some) / len(some):.2f} with {NETS[net]}" for net, some in ratios.items()
    )
    apart = max(abs(w["bare"]["error_rate"] - w["flipguard"]["error_rate"]) for w in found.values())
    lines += [
        "",
        f"On average an epoch takes {means} of the bare script's time, and no pair of errors is more than "
        f"{apart * 100:.1f} points apart. These nets are so small that the host's pace decides, and it varies from "
        "run to run as much as the two ways differ.",
    ]
    if document.get("note"):
        lines += ["", document["note"]]
    return "\n".join(lines) + "\n"
