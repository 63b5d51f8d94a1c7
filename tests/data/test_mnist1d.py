"""MNIST-1D: the same bytes in every run, and the distribution of the plain definition."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from flipguard.data import ArraySplit, load_data
from flipguard.data.mnist import HEIGHTS, _smoothed


def arrays(spec: str) -> tuple[Any, Any]:
    split = load_data(spec).train
    assert isinstance(split, ArraySplit)
    return split.all_inputs.numpy(), split.targets.numpy()


def plain_sample(label: int, random: np.random.Generator) -> Any:
    """The public generator's steps for one sample, with numpy's and scipy's own functions."""
    heights = np.array(HEIGHTS[label])
    heights = (heights - heights.mean()) / heights.std()
    x = (heights - heights[0]) / 6 + 1e-8
    x = np.concatenate([x, np.zeros(36 + int(random.random() * 25))])
    x = np.interp(np.linspace(0, 1, 72), np.linspace(0, 1, len(x)), x)
    x = x * (1 + 0.4 * (random.random() - 0.5))
    x = np.roll(x, random.choice(48))
    x = np.where(x != 0, x, gaussian_filter(0.25 * random.standard_normal(72), 2))
    x = x + 0.02 * random.standard_normal(72)
    x = x - 0.75 * (random.random() - 0.5) * np.linspace(-0.5, 0.5, 72)
    return np.interp(np.linspace(0, 1, 40), np.linspace(0, 1, 72), x)


def test_the_defaults() -> None:
    data = load_data("mnist1d")
    assert (data.name, data.kind) == ("mnist1d", "vector")
    assert data.class_names == tuple("0123456789")
    assert (len(data.train), len(data.test)) == (4000, 1000)
    assert torch.equal(torch.as_tensor(data.train.ids), torch.arange(4000))
    assert torch.equal(data.train.ids_index, torch.arange(4000))
    inputs = data.train.inputs(torch.arange(4000))
    assert isinstance(inputs, torch.Tensor)
    assert inputs.dtype == torch.float32
    assert inputs.shape == (4000, 40)
    assert torch.bincount(data.train.targets).tolist() == [400] * 10
    assert torch.bincount(data.test.targets).tolist() == [100] * 10
    assert float(inputs.mean()) == pytest.approx(0, abs=0.02)
    assert float(inputs.std()) == pytest.approx(1, abs=0.02)


def test_one_seed_gives_the_same_bytes_in_every_run() -> None:
    spec = "mnist1d:train=300,test=50,seed=7"
    code = f"from flipguard.data import load_data; print(load_data({spec!r}).fingerprint)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == load_data(spec).fingerprint
    assert load_data("mnist1d:train=300,test=50,seed=8").fingerprint != load_data(spec).fingerprint


def test_more_samples_change_none_of_those_before() -> None:
    few, many = load_data("mnist1d:train=1500,test=700"), load_data("mnist1d:train=3100,test=900")
    for one, other in ((few.train, many.train), (few.test, many.test)):
        shared = torch.arange(len(one))
        assert torch.equal(one.inputs(shared), other.inputs(shared))  # type: ignore[arg-type]
        assert torch.equal(one.targets, other.targets[: len(one)])
    assert not torch.equal(few.train.targets[:700], few.test.targets)


def test_the_distribution_is_that_of_the_plain_definition() -> None:
    random = np.random.default_rng(1)
    inputs, labels = arrays("mnist1d:train=5000,test=1")
    plain = np.stack([[plain_sample(label, random) for _ in range(300)] for label in range(10)])
    plain = (plain - plain.mean()) / plain.std()
    for label in range(10):
        mine, theirs = inputs[labels == label], plain[label]
        error = np.sqrt(mine.var(0) / len(mine) + theirs.var(0) / len(theirs))
        assert np.abs((mine.mean(0) - theirs.mean(0)) / error).max() < 5
        assert mine.std(0) == pytest.approx(theirs.std(0), rel=0.25)
        neighbours = [
            np.mean([np.corrcoef(one[:-1], one[1:])[0, 1] for one in x]) for x in (mine, theirs)
        ]
        assert neighbours[0] == pytest.approx(neighbours[1], abs=0.05)
    quantiles = np.linspace(0.01, 0.99, 25)
    assert np.quantile(inputs, quantiles) == pytest.approx(np.quantile(plain, quantiles), abs=0.06)


def test_the_smoothing_is_scipys() -> None:
    noise = np.random.default_rng(0).standard_normal((5, 72))
    assert _smoothed(noise) == pytest.approx(np.stack([gaussian_filter(row, 2) for row in noise]))


def test_no_noise_and_no_change_leave_ten_waves() -> None:
    still = "scale_coeff=0,max_translation=1,corr_noise_scale=0,iid_noise_scale=0,shear_scale=0"
    inputs, labels = arrays(f"mnist1d:train=2000,test=1,{still}")
    # Only the padding differs, and it has 25 lengths.
    for label in range(10):
        assert len(np.unique(inputs[labels == label], axis=0)) == 25


def test_ten_thousand_samples_take_less_than_a_second() -> None:
    start = time.perf_counter()
    load_data("mnist1d:train=8000,test=2000")
    assert time.perf_counter() - start < 1
