"""`flipguard train` against a bare script: the same net, recipe and data, in error and in time.

    python benchmarks/cifar.py --data-root DIR --out benchmarks/results/cifar.json

DIR holds `cifar10.npz`. Both ways train with the preset `cifar-short`; the bare script is plain
PyTorch, written for speed (everything on the GPU, an epoch augmented at once, bf16, NHWC, a fused
optimizer), and shares nothing with flipguard but the definition of the net and the numbers of the
recipe. They take turns, seed by seed, on one machine that does nothing else. Time is of an epoch
with its evaluation on the test set; flipguard's also measures 5,000 training samples and writes a
state to resume from.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from flipguard.models import build_model
from flipguard.runs.config import PRESETS, from_dict
from flipguard.training import train

PRESET = "cifar-short"


def bare(net: str, root: Path, seed: int, epochs: int, device: str) -> tuple[float, list[float]]:
    """Error on the test set, and the seconds of every epoch."""
    recipe = PRESETS[PRESET]
    assert recipe["augment"] == "crop-flip"
    assert recipe["optimizer"] == "sgd"
    arrays = np.load(root / "cifar10.npz")

    def images(name: str) -> torch.Tensor:
        pixels = torch.from_numpy(arrays[name]).to(device).permute(0, 3, 1, 2)
        return (pixels.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)

    def labels(name: str) -> torch.Tensor:
        return torch.from_numpy(arrays[name].astype(np.int64).reshape(-1)).to(device)

    train_x, train_y = images("x_train"), labels("y_train")
    test_x, test_y = images("x_test"), labels("y_test")
    padded = F.pad(train_x, (4,) * 4, "reflect")
    torch.manual_seed(seed)
    model = build_model(net, classes=10, input_shape=(3, 32, 32), seed=seed)
    model = model.to(device, memory_format=torch.channels_last)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(
        [
            {"params": [p for p in parameters if p.dim() > 1]},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=recipe["learning_rate"],
        momentum=recipe["momentum"],
        nesterov=recipe["nesterov"],
        weight_decay=recipe["weight_decay"],
        fused=device == "cuda",
    )
    size = recipe["batch_size"]
    steps = len(train_x) // size
    total, warmup = epochs * steps, recipe["warmup"] * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: (s + 1) / warmup if s < warmup else 1 - (s - warmup) / (total - warmup),
    )
    seconds, wrong = [], torch.zeros(())
    for _ in range(epochs):
        began = time.monotonic()
        seen = torch.empty_like(train_x)
        moves = torch.randint(0, 9, (len(train_x), 2), device=device)
        for down in range(9):
            for right in range(9):
                chosen = (moves[:, 0] == down) & (moves[:, 1] == right)
                seen[chosen] = padded[chosen, :, down : down + 32, right : right + 32]
        mirrored = torch.rand(len(seen), device=device) < 0.5
        seen = torch.where(mirrored[:, None, None, None], seen.flip(3), seen)
        model.train()
        for batch in torch.randperm(len(seen), device=device).split(size)[:steps]:
            with torch.autocast(device, torch.bfloat16):
                logits = model(seen[batch])
            loss = F.cross_entropy(
                logits.float(), train_y[batch], label_smoothing=recipe["label_smoothing"]
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        model.eval()
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            says = torch.cat([model(some).argmax(1) for some in test_x.split(5000)])
        wrong = (says != test_y).float().mean()
        wrong.item()
        seconds.append(time.monotonic() - began)
    return wrong.item(), seconds


def ours(net: str, root: Path, seed: int, epochs: int, device: str) -> tuple[float, list[float]]:
    """The same of a run of flipguard."""
    config = from_dict(
        {
            "data": "cifar10",
            "data_root": str(root),
            "model": net,
            "recipe": {"preset": PRESET, "epochs": epochs},
            "seeds": {"seed": seed},
            "machine": {"device": device, "precision": "bf16-mixed"},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        train(config, out, report=lambda _: None)
        history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
        timing = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
    return history[-1]["test"]["error_rate"], [row["seconds"] for row in timing]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nets", nargs="+", default=["resnet20", "resnet56"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=PRESETS[PRESET]["epochs"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = []
    for net in given.nets:
        for seed in range(given.seeds):
            for name, way in (("bare", bare), ("flipguard", ours)):
                began = time.monotonic()
                error, seconds = way(net, given.data_root, seed, given.epochs, given.device)
                row = {
                    "net": net,
                    "way": name,
                    "seed": seed,
                    "error_rate": round(error, 4),
                    # The first epoch also warms the device up.
                    "epoch_seconds": round(statistics.median(seconds[1:] or seconds), 4),
                    "seconds": round(time.monotonic() - began, 1),
                }
                rows.append(row)
                print(row, flush=True)
                write(given, rows)


def write(given: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    """What there is so far."""
    device = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor()
    document = {
        "command": "python benchmarks/cifar.py --data-root DIR --out FILE"
        f" --nets {' '.join(given.nets)} --seeds {given.seeds} --epochs {given.epochs}",
        "machine": {
            "device": device,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "preset": PRESET,
        "rows": rows,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
