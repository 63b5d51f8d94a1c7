"""How fast image files become batches, next to torchvision's ImageFolder and torch's DataLoader.

    python benchmarks/images.py [--images 2000] [--workers 2] [--out benchmarks/results/images.json]

Both read the same JPEG files with equal workers, and take random crops of 224 pixels with flips.
They take turns, so that other work on the machine slows both, and the time that their processes
spend on a core is counted too. A second measurement feeds steps that take 1.5 times as long as
decoding, and reports the share of the time that a step waits.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from flipguard.data import RandomResizedCrop, load_data
from flipguard.training.batches import BatchSource

CLASSES, BATCH, SIZE = 10, 64, 224
SHAPE = (500, 375)  # the usual size of a photo of ImageNet
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ROUNDS = 9


def draw(folder: Path, count: int) -> None:
    """Write photos of smooth noise, which compress about as photos do."""
    random = np.random.default_rng(0)
    for number in range(count):
        coarse = random.integers(0, 256, (SHAPE[1] // 8, SHAPE[0] // 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize(SHAPE, Image.Resampling.BICUBIC)
        noise = random.integers(0, 24, (SHAPE[1], SHAPE[0], 3), dtype=np.uint8)
        pixels = np.clip(np.asarray(image).astype(int) + noise, 0, 255).astype(np.uint8)
        part = "test" if number < CLASSES else "train"
        path = folder / part / f"{number % CLASSES}" / f"{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def ours(folder: Path, workers: int) -> Callable[[int], Iterator[Any]]:
    """Return what yields the batches of an epoch from flipguard."""
    data = load_data(f"{folder}:size={SIZE},workers={workers}")
    source = BatchSource(
        data.train, device=torch.device("cpu"), model="resnet18", augmentation=RandomResizedCrop()
    )

    def epoch(number: int) -> Iterator[Any]:
        drawn = torch.Generator().manual_seed(number)
        order = torch.randperm(len(data.train), generator=drawn)
        return source.epoch_batches(order.split(BATCH), epoch=number)

    return epoch


def theirs(folder: Path, workers: int) -> Callable[[int], Iterator[Any]]:
    """Return what yields the batches of an epoch from torchvision and torch."""
    change = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    loader = DataLoader(
        ImageFolder(str(folder / "train"), change),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        prefetch_factor=4,
    )
    return lambda _: iter(loader)


def seconds_on_cores() -> float:
    """Return the CPU time of this process and of its workers that are alive (Linux)."""
    spent = time.process_time()
    for child in active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def measured(batches: Iterator[Any]) -> tuple[float, float]:
    """Return the images per second of one epoch, and the milliseconds of CPU time per image."""
    began, spent, count = time.perf_counter(), seconds_on_cores(), 0
    for _, target in batches:
        count += len(target)
    seconds = time.perf_counter() - began
    return count / seconds, 1000 * (seconds_on_cores() - spent) / count


def share_waited(batches: Iterator[Any], seconds: float) -> float:
    """Return the share of the time that is waited for batches, if a step takes some seconds.

    A step sleeps, as a processor does that waits for a GPU. The first batch is left out.
    """
    next(batches)
    began, waited = time.perf_counter(), 0.0
    while True:
        asked = time.perf_counter()
        if next(batches, None) is None:
            return waited / (asked - began)
        waited += time.perf_counter() - asked
        time.sleep(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(folder, given.images)
        both = {
            "flipguard": ours(folder, given.workers),
            "torchvision": theirs(folder, given.workers),
        }
        rates: dict[str, list[float]] = {name: [] for name in both}
        work: dict[str, list[float]] = {name: [] for name in both}
        for number in range(ROUNDS + 1):
            for name, epoch in both.items():
                rate, milliseconds = measured(epoch(number))
                if number:  # the first one warms up
                    rates[name].append(rate)
                    work[name].append(milliseconds)
        median = {name: statistics.median(some) for name, some in rates.items()}
        ratios = [a / b for a, b in zip(rates["flipguard"], rates["torchvision"], strict=True)]
        seconds = 1.5 * BATCH / median["flipguard"]
        waited = {
            name: statistics.median(share_waited(iter(epoch(9)), seconds) for _ in range(3))
            for name, epoch in both.items()
        }
    rows = {
        "command": f"python benchmarks/images.py --images {given.images} --workers {given.workers}",
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "load": round(os.getloadavg()[2], 1),  # of the last 15 minutes, this benchmark included
            "python": platform.python_version(),
            **{
                package: version(package) for package in ("torch", "torchvision", "pillow", "numpy")
            },
        },
        "images": given.images,
        "workers": given.workers,
        "images_per_second": rates,
        "cpu_milliseconds_per_image": work,
        "ratios": ratios,
        "waited": waited,
    }
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    for name in both:
        print(
            f"{name}: {median[name]:.0f} images/s, {statistics.median(work[name]):.2f} ms of CPU "
            f"time per image; waits {100 * waited[name]:.1f} % of a step"
        )
    print(f"flipguard / torchvision, median of {ROUNDS} rounds: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
