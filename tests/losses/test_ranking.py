"""The k highest of very many classes, found in groups, are those that sorting finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.losses import divergences
from tests.effort import tries


@settings(max_examples=tries(60))
@given(
    classes=st.integers(1, 300),
    k=st.integers(1, 300),
    coarse=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_groups_find_what_sorting_finds(classes, k, coarse, seed):
    k = min(k, classes)
    logits = torch.randn(3, classes, generator=torch.Generator().manual_seed(seed))
    if coarse:
        logits = logits.round()  # ties, at the last place too
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            divergences, "SIZE", 3
        )  # so that small numbers of classes are grouped as well
        patch.setattr(divergences, "FEW", 6)
        places = divergences.highest(logits, k)
    assert places.shape == (3, k)
    for row, chosen in zip(logits.tolist(), places.tolist(), strict=True):
        assert len(set(chosen)) == k
        assert sorted((row[c] for c in chosen), reverse=True) == sorted(row, reverse=True)[:k]


@pytest.mark.parametrize("classes", [2560, 2561, 21_000])
def test_many_classes_are_grouped(classes):
    logits = torch.randn(4, classes)
    found = divergences.highest(logits, 10).sort(-1).values
    assert torch.equal(found, logits.topk(10, -1).indices.sort(-1).values)
