"""Update a model that somebody else has trained, and judge the update.

All that is there of the model is a file of weights, and what its authors say about it: it is the
`test_efficientnet` of timm, for images of 32 pixels, with the mean and the deviation of ImageNet,
and its classes are listed in a file, in an order of their own. `flipguard adopt` turns it into a
run. Then a new model is trained twice, as usual and with focal distillation from the old one (Yan
et al., "Positive-Congruent Training", 2021; FD-LM), and `flipguard gate` judges both.

Everything is generated here: the images, in folders by class, and the model of these authors. The
number of test images and the limit of the policy were chosen on two other draws of the images
(seeds 401 and 402), in which the control broke 8.7 and 8.3 % of 8,000 images and the treated update
6.8 and 5.5 %. The draw below was run once, after that: the control breaks 8.54 % (7.93 to 9.17) and
fails, the treated update breaks 6.26 % (5.74 to 6.82) and passes. The digits differ from machine to
machine. In your project, set the limit before you train.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

FOLDER = Path("adopted")
SYMBOLS = ("arrow", "bell", "cloud", "drop", "flame", "heart", "key", "star")
# The order of the authors' outputs is not the order in which folders are read.
THEIR_ORDER = ("star", "key", "bell", "heart", "arrow", "flame", "drop", "cloud")
SIDE = 32
TASK = 101  # the seed of the symbols' patterns
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

POLICY = """\
# What the update may do.
confidence = 0.95

[[rule]]                      # at most 7.5 % of all images may break
metric = "negative_flip_rate"
max = 0.075

[[rule]]                      # the update has to be more accurate
metric = "accuracy_gain"
min = 0.0
"""

ADOPT = """\
flipguard adopt --model timm:test_efficientnet --weights their_model.safetensors \\
  --classes their_classes.txt --input-size 32 --resize 32 --data symbols:size=32 --out runs/old"""

TRAIN = """\
flipguard train --config recipe.toml --old runs/old --out runs/control
flipguard train --config recipe.toml --old runs/old --out runs/treated \\
  --method fd-lm --set options.weight=0.5"""

RECIPE = """\
# recipe.toml: the settings that both updates share
data = "symbols:size=32,decode=now"
model = "timm:test_resnet"

[recipe]
epochs = 6
batch_size = 50
learning_rate = 0.003

[machine]
device = "cpu"
measure_every = 6             # the test images are needed once, at the end
"""

JUDGE = """\
flipguard gate runs/old runs/control --policy gate.toml
flipguard gate runs/old runs/treated --policy gate.toml"""


def write_images(folder: Path, *, train: int, test: int, seed: int = 0) -> None:
    """A symbol is a coarse pattern, drawn so carelessly that it may pass for another one."""
    patterns = np.random.default_rng(TASK).normal(size=(len(SYMBOLS), 4, 4, 3))
    drawn = np.random.default_rng(seed)
    for split, count in (("train", train), ("test", test)):
        for name, pattern in zip(SYMBOLS, patterns, strict=True):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count // len(SYMBOLS)):
                careless = 128 + 30 * (pattern + 2.4 * drawn.normal(size=pattern.shape))
                small = Image.fromarray(careless.clip(0, 255).astype(np.uint8))
                large = small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
                large.save(place / f"{number:04}.png")


def train_their_model(images: Path, file: Path) -> None:
    """What the authors did, without flipguard: an ordinary loop, and a file of weights."""
    torch.manual_seed(1)
    places = [(path, THEIR_ORDER.index(path.parent.name)) for path in sorted(images.glob("*/*"))]
    pixels = torch.from_numpy(np.stack([np.array(Image.open(path)) for path, _ in places]))
    targets = torch.tensor([target for _, target in places])
    mean, deviation = (torch.tensor(one).view(3, 1, 1) for one in (MEAN, DEVIATION))
    inputs = (pixels.permute(0, 3, 1, 2) / 255 - mean) / deviation
    model = timm.create_model("test_efficientnet", num_classes=len(THEIR_ORDER))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for some in torch.cat([torch.randperm(len(inputs)) for _ in range(4)]).split(50):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[some]), targets[some]).backward()
        optimizer.step()
    save_file(model.state_dict(), str(file))


def write_files(folder: Path, *, train: int = 2_000, test: int = 8_000) -> None:
    """Write the images, the authors' files, the recipe and the policy."""
    write_images(folder / "symbols", train=train, test=test)
    train_their_model(folder / "symbols" / "train", folder / "their_model.safetensors")
    (folder / "their_classes.txt").write_text("\n".join(THEIR_ORDER) + "\n")
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "gate.toml").write_text(POLICY)


def run(script: str, folder: Path) -> None:
    """Show commands, and carry them out."""
    for command in script.replace("\\\n  ", "").splitlines():
        print(f"\n$ {command}", flush=True)
        words = command.split()[1:]
        subprocess.run([sys.executable, "-m", "flipguard", *words], cwd=folder, check=False)


def main() -> None:
    FOLDER.mkdir()
    write_files(FOLDER)
    for script in (ADOPT, TRAIN, JUDGE):
        run(script, FOLDER)


if __name__ == "__main__":
    main()
