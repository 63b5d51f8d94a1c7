"""Made-up data in the layouts of the papers' data sets, and weights where libraries look for them.

Weights are random, and are stored in the files that timm and torchvision load.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import scipy.io
import timm
import torch
import torchvision
from safetensors.torch import save_file
from tests.data.test_folders import draw

CLASSES = 20
PIXELS = (32, 32)
TRAIN, TEST = 4, 2  # images of each class
REVISION = "0" * 40


def imagenet(root: Path) -> None:
    """ImageNet with its first classes: class folders, a flat folder and the development kit."""
    top = root / "imagenet"
    names = timm.data.ImageNetInfo().label_names()[:CLASSES]
    for number, name in enumerate(names):
        for image in range(TRAIN):
            draw(top / f"train/{name}/{name}_{image}.JPEG", size=PIXELS, seed=100 * number + image)
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(1, CLASSES + 1), TEST))
    for image in range(1, len(numbers) + 1):
        draw(top / f"val/ILSVRC2012_val_{image:08}.JPEG", size=PIXELS, seed=image)
    kit = top / "ILSVRC2012_devkit_t12" / "data"
    kit.mkdir(parents=True)
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    rows = [(number, name, "words", 0) for number, name in enumerate(reversed(names), start=1)]
    table = np.array(rows, dtype=kind).reshape(-1, 1)
    scipy.io.savemat(kit / "meta.mat", {"synsets": table})
    truth = kit / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("".join(f"{number}\n" for number in numbers))


def inaturalist(root: Path) -> None:
    """INaturalist of both years, with their lists."""
    top = root / "inaturalist"
    categories = [{"id": one, "name": f"Species {one}"} for one in range(CLASSES)]
    for year, folder in (("2017", "train_val_images"), ("2018", "train_val2018")):
        number = 0
        for part, each in (("train", TRAIN), ("val", TEST)):
            images, labels = [], []
            for category in range(CLASSES):
                for _ in range(each):
                    number += 1
                    name = f"{folder}/group/{category}/{number:032x}.jpg"
                    draw(top / name, size=PIXELS, seed=number)
                    images.append({"id": number, "file_name": name})
                    labels.append({"id": number, "image_id": number, "category_id": category})
            lists = {"images": images, "annotations": labels, "categories": categories}
            (top / f"{part}{year}.json").write_text(json.dumps(lists))


def svhn(root: Path) -> None:
    """The cropped digits of SVHN."""
    random = np.random.default_rng(0)
    (root / "svhn").mkdir(parents=True)
    for part, count in (("train", 80), ("test", 40)):
        arrays = {
            "X": random.integers(0, 256, (32, 32, 3, count), dtype=np.uint8),
            "y": (np.arange(count, dtype=np.uint8) % 10 + 1).reshape(-1, 1),
        }
        scipy.io.savemat(root / f"svhn/{part}_32x32.mat", arrays, do_compression=True)


def cifar(root: Path) -> None:
    """CIFAR-10 and CIFAR-100 as arrays."""
    random = np.random.default_rng(0)
    for classes in (10, 100):
        arrays = {}
        for part, count in (("train", 2 * max(classes, 40)), ("test", max(classes, 40))):
            arrays[f"x_{part}"] = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
            arrays[f"y_{part}"] = np.arange(count) % classes
        np.savez(root / f"cifar{classes}.npz", **arrays)


def publish(cache: Path, spec: str) -> dict[str, str]:
    """Put random weights of a model where its library looks; return the environment for that."""
    kind, _, name = spec.partition(":")
    hub, pages = cache / "torch", cache / "hf"
    torch.manual_seed(0)
    if kind == "torchvision":
        chosen = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"]
        given = {"init_weights": True} if name == "googlenet" else {}
        place = hub / "hub" / "checkpoints" / Path(chosen.url).name
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torchvision.models.get_model(name, **given).state_dict(), place)
    else:
        told = timm.get_pretrained_cfg(name)
        place = pages / f"models--{told.hf_hub_id.replace('/', '--')}"
        (place / "refs").mkdir(parents=True, exist_ok=True)
        (place / "refs" / "main").write_text(REVISION)
        (place / "snapshots" / REVISION).mkdir(parents=True, exist_ok=True)
        state = timm.create_model(name, pretrained=False).state_dict()
        save_file(state, place / "snapshots" / REVISION / "model.safetensors")
    return {"TORCH_HOME": str(hub), "HF_HUB_CACHE": str(pages), "HF_HUB_OFFLINE": "1"}
