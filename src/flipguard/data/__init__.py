"""Data sets by name or path, splits by id, and augmentations that are functions of the sample.

>>> from flipguard.data import build_augmentation, load_data
>>> data = load_data("mnist1d:train=200,test=100")
>>> change = build_augmentation("shift-scale-noise")
>>> indices = data.train.targets.argsort()[:8]
>>> batch = data.train.inputs(indices)
>>> change(batch, ids_index=data.train.ids_index[indices], epoch=0, seed=1).shape
torch.Size([8, 40])
"""

from __future__ import annotations

from flipguard.data.augment import (
    Augmentation,
    CropFlip,
    Cutout,
    InTurn,
    NoAugmentation,
    ShiftScaleNoise,
)
from flipguard.data.augmentations import AUGMENTATIONS, RandomResizedCrop, build_augmentation
from flipguard.data.dataset import ArraySplit, DataSet, Split, TextSplit
from flipguard.data.image_folders import FolderSplit, seen_by
from flipguard.data.registry import DATA_SETS, KnownData, load_data
from flipguard.data.subsets import (
    held_out_per_class,
    part,
    part_per_class,
    random_classes,
    stratified,
)

__all__ = [
    "AUGMENTATIONS",
    "DATA_SETS",
    "ArraySplit",
    "Augmentation",
    "CropFlip",
    "Cutout",
    "DataSet",
    "FolderSplit",
    "InTurn",
    "KnownData",
    "NoAugmentation",
    "RandomResizedCrop",
    "ShiftScaleNoise",
    "Split",
    "TextSplit",
    "build_augmentation",
    "held_out_per_class",
    "load_data",
    "part",
    "part_per_class",
    "random_classes",
    "seen_by",
    "stratified",
]
