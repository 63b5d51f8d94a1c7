"""Write the test samples to a file, so that the page can show what breaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flipguard.demo.plan import DATA
from flipguard.predictions.replacing import replacing


def write_samples(path: Path) -> None:
    """Write the signals of the test set with their ids."""
    from flipguard.data import ArraySplit, load_data

    test = load_data(DATA).test
    assert isinstance(test, ArraySplit)  # as generated data is
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, images=test.all_inputs.numpy(), ids=np.asarray(test.ids))
