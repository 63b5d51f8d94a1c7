"""Pictures of studies: what is computed for them. The tests of the command draw them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipguard.studies.draw import TITLE_LETTERS, _evenly, _ratio_error
from flipguard.studies.read_study import study_of
from flipguard.studies.results import read_result

COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "studies"
words = st.lists(st.text("abcdefgh", min_size=1, max_size=14), min_size=1, max_size=40)


@given(words)
def test_titles_are_in_lines_of_about_one_length(words: list[str]) -> None:
    lines = _evenly(" ".join(words)).splitlines()
    assert " ".join(lines).split() == words
    assert max(map(len, lines)) <= TITLE_LETTERS
    assert len(lines) == len(textwrap.wrap(" ".join(words), TITLE_LETTERS))
    # Narrower ones would be more, or break a word: so none is left alone for want of care.
    width = max(map(len, lines)) - 1
    assert width < max(map(len, words)) or len(textwrap.wrap(" ".join(words), width)) > len(lines)


@pytest.mark.parametrize("name", ["pct.table3", "elodi.table1"])
def test_the_error_of_a_ratio_is_that_of_leaving_seeds_out(name: str) -> None:
    study, metric = study_of(name), "negative_flip_rate"
    result = read_result(COMMITTED / f"{name}.mnist1d.json", study)
    untreated = np.array(result.rows[0].values[metric])
    n = len(untreated)
    assert _ratio_error(result, result.rows[0], metric) == 0
    for row in result.rows[1:]:
        own = np.array(row.values[metric])
        without = np.array(
            [np.delete(own, i).mean() / np.delete(untreated, i).mean() for i in range(n)]
        )
        jackknife = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
        assert _ratio_error(result, row, metric) == pytest.approx(jackknife, rel=0.05)
