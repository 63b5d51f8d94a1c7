"""Counter-based numbers: the plain definition, independence of the batch, and good statistics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flipguard.errors import InputError
from flipguard.randomness import bell, bits, integers, uniform
from tests.effort import tries

WHOLE = st.integers(-(2**63), 2**63 - 1)
COUNT = 40_000


def mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def plain(seed: int, epoch: int, id: int, draw: int) -> int:
    """The definition, number by number, as an unsigned 64-bit integer."""
    state = mixed((mixed((mixed(seed % 2**64) + epoch) % 2**64) + id) % 2**64)
    return mixed((state + draw * 0x9E3779B97F4A7C15) % 2**64)


def test_the_mixer_is_splitmix64() -> None:
    # The first outputs of the public reference implementation for the seed 1234567.
    golden = 0x9E3779B97F4A7C15
    outputs = [mixed((1234567 + step * golden) % 2**64) for step in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@settings(max_examples=tries(100))
@given(WHOLE, WHOLE, st.lists(WHOLE, min_size=1, max_size=5), st.integers(0, 10**6))
def test_the_bits_are_as_the_definition_says(
    seed: int, epoch: int, ids: list[int], draw: int
) -> None:
    expected = [plain(seed, epoch, one, draw) for one in ids]
    assert [b % 2**64 for b in bits(seed, epoch, torch.tensor(ids), draw).tolist()] == expected
    found = uniform(seed, epoch, torch.tensor(ids), draw)
    assert found.dtype == torch.float32
    assert found.tolist() == [(one >> 40) / 2**24 for one in expected]
    whole = integers(seed, epoch, torch.tensor(ids), draw, below=9)
    assert whole.tolist() == [((one >> 33) * 9) >> 31 for one in expected]
    bounds = torch.arange(1, 1 + len(ids))
    each = integers(seed, epoch, torch.tensor(ids), draw, below=bounds)
    assert each.tolist() == [((one >> 33) * n) >> 31 for n, one in enumerate(expected, start=1)]
    curve = bell(seed, epoch, torch.tensor(ids), draw)
    for value, one in zip(curve.tolist(), expected, strict=True):
        total = sum((one >> shift) % 2**16 for shift in (0, 16, 32, 48))
        assert value == pytest.approx((total - 131070) / math.sqrt((2**32 - 1) / 3), rel=1e-6)


@settings(max_examples=tries(30))
@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 70))
def test_a_number_does_not_depend_on_its_company(seed: int, epoch: int, count: int) -> None:
    ids = torch.randperm(1000)[:count]
    order = torch.randperm(count)
    for draw in (uniform, bell):
        whole = draw(seed, epoch, ids, 3)
        assert torch.equal(draw(seed, epoch, ids[order], 3), whole[order])
        alone = torch.cat([draw(seed, epoch, one[None], 3) for one in ids])
        assert torch.equal(alone, whole)


def test_epochs_and_draws_may_be_tensors() -> None:
    ids = torch.arange(20)
    for epoch in (0, 3, 2**40, -1):
        assert torch.equal(bits(5, torch.tensor(epoch), ids, 2), bits(5, epoch, ids, 2))
    column = bits(5, 1, ids, torch.tensor([[0], [7]]))
    assert torch.equal(column, torch.stack([bits(5, 1, ids, 0), bits(5, 1, ids, 7)]))


def test_the_numbers_are_uniform() -> None:
    values = uniform(0, 0, torch.arange(COUNT), 0).double()
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    assert abs(float(values.mean()) - 0.5) < 4 * math.sqrt(1 / 12 / COUNT)
    assert float(values.var()) == pytest.approx(1 / 12, rel=0.02)
    for seed in range(5):
        cells = integers(seed, 0, torch.arange(COUNT), 0, below=100)
        found = torch.bincount(cells, minlength=100).double()
        chi_square = float(((found - COUNT / 100) ** 2 / (COUNT / 100)).sum())
        # 99 degrees of freedom: beyond these once in 100,000 each way.
        assert 50 < chi_square < 168


def test_every_bit_is_on_half_of_the_time() -> None:
    words = bits(3, 1, torch.arange(COUNT), 2)
    shares = torch.stack([(words >> place) & 1 for place in range(64)]).double().mean(1)
    assert float((shares - 0.5).abs().max()) < 5 * 0.5 / math.sqrt(COUNT)


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.double(), other.double()]))[0, 1])


def test_neighbours_are_not_correlated() -> None:
    ids = torch.arange(COUNT)
    first = uniform(0, 0, ids, 0)
    others = {
        "ids": uniform(0, 0, ids + 1, 0),
        "distant ids": uniform(0, 0, ids + 2**32, 0),
        "epochs": uniform(0, 1, ids, 0),
        "draws": uniform(0, 0, ids, 1),
        "seeds": uniform(1, 0, ids, 0),
        "seed for epoch": uniform(1, -1, ids, 0),
    }
    for what, other in others.items():
        assert abs(correlation(first, other)) < 5 / math.sqrt(COUNT), what
        # Uniform pairs fill a 10 by 10 table evenly: correlation alone sees only straight lines.
        table = torch.bincount((first * 10).long() * 10 + (other * 10).long(), minlength=100)
        chi_square = float(((table - COUNT / 100) ** 2 / (COUNT / 100)).sum())
        assert 50 < chi_square < 168, what


def test_draws_of_one_sample_are_uniform_too() -> None:
    draws = torch.arange(COUNT)[:, None]
    values = uniform(0, 0, torch.tensor([7]), draws)[:, 0]
    assert abs(float(values.mean()) - 0.5) < 4 * math.sqrt(1 / 12 / COUNT)
    assert abs(correlation(values[1:], values[:-1])) < 5 / math.sqrt(COUNT)


def test_the_bell_is_nearly_normal() -> None:
    values = bell(0, 0, torch.arange(COUNT), 0).double()
    assert abs(float(values.mean())) < 4 / math.sqrt(COUNT)
    assert float(values.std()) == pytest.approx(1, rel=0.02)
    assert float(values.abs().max()) < 3.47
    assert float((values.abs() < 1).double().mean()) == pytest.approx(0.683, abs=0.02)


def test_ids_must_be_whole() -> None:
    with pytest.raises(InputError, match=r"^Expected `ids` to be whole numbers, but got torch.fl"):
        uniform(0, 0, torch.rand(3), 0)
