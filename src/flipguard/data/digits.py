"""The small digits that come with scikit-learn: 1,797 images of 8 by 8 pixels."""

from __future__ import annotations

import importlib

import torch

from flipguard.data.base import ArraySplit, DataSet
from flipguard.data.options import Options
from flipguard.data.splits import part
from flipguard.errors import InputError


def load_digits(options: Options) -> DataSet:
    """Splits the digits by id with a seed; values are from -1 to 1, float32 [n, 1, 8, 8]."""
    test_share, seed = options.share("test", 0.25), options.whole("seed", 0)
    options.finish()
    try:
        found = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as problem:
        raise InputError(
            "Expected `digits` to come from scikit-learn, but got no such package; install it "
            "with: pip install scikit-learn."
        ) from problem
    whole = ArraySplit(
        inputs=torch.from_numpy(found.images).to(torch.float32).unsqueeze(1) / 8 - 1,
        targets=torch.from_numpy(found.target),
    )
    tested = part(whole.ids, seed, test_share)
    return DataSet.of(
        name="digits",
        kind="image",
        class_names=[str(label) for label in range(10)],
        train=whole.subset(~tested),
        test=whole.subset(tested),
    )
