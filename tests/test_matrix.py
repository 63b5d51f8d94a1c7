"""The matrix of models, held against plain double loops and against `compare`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flipguard import InputError, Predictions, compare
from flipguard.engines import pairing
from flipguard.matrices import Matrix, matrix
from flipguard.predictions.read import read_predictions
from flipguard.predictions.write import write_predictions

N, K = 200, 5


def answers(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Targets, and what five models of different skill said."""
    rng = np.random.default_rng(seed)
    target = rng.integers(4, size=N)
    said = np.where(
        rng.random((K, N)) < np.linspace(0.4, 0.9, K)[:, None], target, rng.integers(4, size=(K, N))
    )
    return target, said


def models(*, shuffled: bool, names: bool = False, targets: bool = True) -> list[Predictions]:
    target, said = answers()
    rng = np.random.default_rng(1)
    made = []
    for i in range(K):
        order = rng.permutation(N) if shuffled else np.arange(N)
        spell = (lambda c: f"class {c}") if names else int
        made.append(
            Predictions.from_arrays(
                ids=[f"s{j}" for j in order],
                labels=[spell(c) for c in said[i][order]],
                targets=[spell(c) for c in target[order]] if targets else None,
                name=f"model{i}",
            )
        )
    return made


def plain(target: list[int], said: list[list[int]]) -> dict[str, list[list[float]]]:
    """The definitions read aloud."""
    n, k = len(target), len(said)
    table: dict[str, list[list[float]]] = {"nfr": [], "churn": [], "gain": []}
    for i in range(k):
        rows: dict[str, list[float]] = {"nfr": [], "churn": [], "gain": []}
        for j in range(k):
            old, new = said[i], said[j]
            flips = sum(o == t and w != t for o, w, t in zip(old, new, target, strict=True))
            changed = sum(o != w for o, w in zip(old, new, strict=True))
            old_wrong = sum(o != t for o, t in zip(old, target, strict=True))
            new_wrong = sum(w != t for w, t in zip(new, target, strict=True))
            rows["nfr"].append(flips / n)
            rows["churn"].append(changed / n)
            rows["gain"].append((old_wrong - new_wrong) / n)
        for name, row in rows.items():
            table[name].append(row)
    return table


def same(found: Matrix, target: np.ndarray, said: np.ndarray) -> None:
    expected = plain(target.tolist(), said.tolist())
    np.testing.assert_allclose(found.negative_flip_rate, expected["nfr"], atol=1e-15)
    np.testing.assert_allclose(found.churn, expected["churn"], atol=1e-15)
    np.testing.assert_allclose(found.accuracy_gain, expected["gain"], atol=1e-15)
    np.testing.assert_allclose(found.error_rate, (said != target).mean(axis=1), atol=1e-15)
    assert found.n == len(target)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("names", [False, True])
def test_every_pair_by_plain_loops(shuffled: bool, names: bool) -> None:
    found = matrix(models(shuffled=shuffled, names=names))
    same(found, *answers())
    assert found.names == tuple(f"model{i}" for i in range(K))


def test_a_join_in_parts_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "ROWS_PER_PART", 17)
    same(matrix(models(shuffled=True)), *answers())


@pytest.mark.parametrize("shuffled", [False, True])
def test_every_pair_is_what_compare_says(shuffled: bool) -> None:
    given = models(shuffled=shuffled)
    found = matrix(given)
    for i in range(K):
        for j in range(K):
            result = compare(old=given[i], new=given[j])
            assert found.negative_flip_rate[i, j] == result["negative_flip_rate"].value
            assert found.churn[i, j] == result["churn"].value
            assert found.accuracy_gain[i, j] == pytest.approx(result["accuracy_gain"].value)
            assert found.error_rate[i] == result["error_rate_old"].value


def test_the_diagonal_is_nothing() -> None:
    found = matrix(models(shuffled=False))
    for values in (found.negative_flip_rate, found.churn, found.accuracy_gain):
        assert (values.diagonal() == 0).all()


def test_scores_count_by_their_largest(tmp_path: Path) -> None:
    target, said = answers()
    made = []
    for i in range(K):
        logits = np.random.default_rng(i).normal(size=(N, 4)).astype(np.float32)
        logits[np.arange(N), said[i]] += 10
        kind = "logits" if i % 2 else "probabilities"
        if kind == "probabilities":
            logits = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        ids = [f"s{j}" for j in range(N)]
        one = Predictions.from_arrays(ids=ids, targets=target, **{kind: logits})
        write_predictions(one, tmp_path / f"{i}.parquet")
        made.append(read_predictions(tmp_path / f"{i}.parquet"))
    same(matrix(made), target, said)


def test_without_targets_only_churn_is_known() -> None:
    found = matrix(models(shuffled=True, targets=False))
    assert np.isnan(found.negative_flip_rate).all()
    assert np.isnan(found.accuracy_gain).all()
    assert np.isnan(found.error_rate).all()
    np.testing.assert_allclose(
        found.churn, plain(*(a.tolist() for a in answers()))["churn"], atol=1e-15
    )
    assert found.as_dict()["negative_flip_rate"] == [[None] * K] * K
    assert found.as_dict()["accuracy_gain"] == [[None] * K] * K
    assert found.as_dict()["error_rate"] == [None] * K


def test_rows_without_a_target_count_only_for_churn() -> None:
    one = Predictions.from_arrays(labels=["a", "a", "b"], targets=["a", None, "a"], name="one")
    two = Predictions.from_arrays(labels=["b", "b", "b"], targets=["a", None, "a"], name="two")
    found = matrix([one, two])
    assert found.n == 3
    assert found.negative_flip_rate.tolist() == [[0.0, 0.5], [0.0, 0.0]]
    assert found.churn[0, 1] == pytest.approx(2 / 3)
    assert found.error_rate.tolist() == [0.5, 1.0]


def test_targets_of_one_model_serve_all() -> None:
    target, said = answers()
    made = [
        Predictions.from_arrays(labels=said[i], targets=target if i == 3 else None)
        for i in range(K)
    ]
    same(matrix(made), target, said)


def test_the_json() -> None:
    found = matrix(models(shuffled=False))
    document = json.loads(found.to_json())
    assert document == found.as_dict()
    assert list(document) == [
        "schema",
        "models",
        "n",
        "left_out",
        "error_rate",
        "negative_flip_rate",
        "churn",
        "accuracy_gain",
    ]
    assert document["schema"] == "flipguard.matrix/1"
    assert document["models"] == [f"model{i}" for i in range(K)]
    assert document["negative_flip_rate"] == found.negative_flip_rate.tolist()


def test_names_are_stems_where_those_differ(tmp_path: Path) -> None:
    paths = ["a/test.csv", "b/test.csv", "b/other.csv.gz", "b/v1.2.parquet"]
    for path in paths:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        given = Predictions.from_arrays(ids=[1, 2], labels=["x", "y"])
        write_predictions(given, tmp_path / path)
    read = [read_predictions(tmp_path / path) for path in paths]
    chosen = replace(read[0], name="the old one")
    twice = Predictions.from_arrays(ids=[1, 2], labels=["x", "y"])
    assert matrix([*read, chosen, twice, twice]).names == (
        str(tmp_path / "a/test.csv"),
        str(tmp_path / "b/test.csv"),
        "other",
        "v1.2",
        "the old one",
        "predictions",
        "predictions (2)",
    )


# -- refusals ----------------------------------------------------------------------------------


def labels(name: str, ids: list[str], said: list[str], **more: object) -> Predictions:
    return Predictions.from_arrays(ids=ids, labels=said, name=name, **more)  # type: ignore[arg-type]


def test_one_model_is_no_matrix() -> None:
    with pytest.raises(
        InputError, match="Expected at least 2 models to set side by side, but got 1"
    ):
        matrix([labels("one", ["a"], ["x"])])


def test_missing_ids_are_refused_or_dropped() -> None:
    one = labels("one", ["a", "b", "c"], ["x", "y", "y"])
    two = labels("two", ["c", "b", "a"], ["x", "x", "x"])
    three = labels("three", ["b", "a"], ["y", "y"])
    with pytest.raises(InputError, match="one has 1 id that three lacks: 'c'"):
        matrix([one, two, three])
    found = matrix([one, two, three], on_missing="drop")
    assert found.n == 2
    assert found.churn.tolist() == [[0.0, 0.5, 0.5], [0.5, 0.0, 1.0], [0.5, 1.0, 0.0]]
    with pytest.raises(InputError, match="Expected `on_missing` to be error or drop"):
        matrix([one, two], on_missing="guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_targets_must_agree_between_all_models(order: list[str]) -> None:
    one = labels("one", ["a", "b"], ["x", "x"])
    two = labels("two", ["a", "b"], ["x", "x"], targets=["x", "y"])
    three = labels("three", order, ["x", "x"], targets=["x", "x"])
    with pytest.raises(InputError, match="two and three disagree on the target of id 'b'"):
        matrix([one, two, three])


def test_a_missing_label_is_refused() -> None:
    one = labels("one", ["a", "b"], ["x", "y"])
    two = Predictions.from_arrays(ids=["a", "b"], labels=["x", None], name="two")
    with pytest.raises(InputError, match="two has no predicted class in column 'label' for id 'b'"):
        matrix([one, two])


def test_scores_that_mean_nothing_are_refused() -> None:
    logits = np.eye(3)
    logits[2, 0] = np.nan
    good = Predictions.from_arrays(ids=["a", "b", "c"], labels=[0, 1, 2])
    bad = Predictions.from_arrays(ids=["a", "b", "c"], logits=logits, name="bad.npz")
    with pytest.raises(InputError, match=r"bad\.npz has NaN or infinite logits for id 'c'"):
        matrix([good, good, bad])


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    whole = [json.dumps({"id": i, "label": "x"}) for i in range(2000)]
    (tmp_path / "a.jsonl").write_text("\n".join(whole))
    (tmp_path / "b.jsonl").write_text("\n".join([*whole[:1500], '{"id": oops', *whole[1501:]]))
    with pytest.raises(InputError, match=r"b\.jsonl cannot be read \(line 1,501"):
        matrix([read_predictions(tmp_path / f"{name}.jsonl") for name in ("a", "b")])


def test_duplicate_ids_are_named() -> None:
    one = labels("one", ["a", "b", "b"], ["x", "y", "y"])
    with pytest.raises(InputError, match="has more than one row for id 'b'"):
        matrix([one, one])


def test_many_models_at_once_are_quick() -> None:
    from time import perf_counter

    rng = np.random.default_rng(0)
    target = rng.integers(10, size=10_000)
    made = [
        Predictions.from_arrays(
            ids=np.arange(10_000), labels=rng.permutation(target), targets=target, name=f"m{i}"
        )
        for i in range(13)
    ]
    start = perf_counter()
    matrix(made)
    assert perf_counter() - start < 5.0


def test_a_matrix_is_named_in_one_line() -> None:
    assert repr(matrix(models(shuffled=False)[:2])) == (
        "<Matrix of 2 models, n=200: 'model0', 'model1'>"
    )
