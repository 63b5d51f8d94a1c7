"""Ensembles: averages held against plain Python, and what cannot be averaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from flipguard import InputError, Predictions, compare, read_predictions
from flipguard.ensembles import ensemble
from flipguard.predictions import scores as scores_module
from flipguard.predictions.write import write_predictions

SUFFIXES = [".csv", ".jsonl.gz", ".parquet", ".arrow", ".npz"]


def rows(predictions: Predictions) -> dict[str, dict[str, float]]:
    """id -> class -> score, by plain Python."""
    assert predictions.scores is not None
    assert predictions.id is not None
    names = predictions.class_names or tuple(map(str, range(predictions.scores.array.shape[1])))
    ids = predictions.frame.select(predictions.id).collect().to_series().to_list()
    return {
        str(key): dict(zip(names, values, strict=True))
        for key, values in zip(ids, predictions.scores.array.tolist(), strict=True)
    }


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits)
    return weights / weights.sum(axis=1, keepdims=True)


def members(
    *,
    kind: str = "logits",
    dtype: type = np.float64,
    names: bool = True,
    count: int = 3,
    n: int = 40,
) -> list[Predictions]:
    """Models of the same samples and classes, each in an order of its own."""
    rng = np.random.default_rng(3)
    classes = ["cat", "dog", "a,b"]
    targets = rng.integers(3, size=n)
    made = []
    for i in range(count):
        order = rng.permutation(n) if i else np.arange(n)
        places = rng.permutation(3) if names else np.arange(3)
        logits = rng.normal(size=(n, 3)).astype(dtype)
        values = softmax(logits).astype(dtype) if kind == "probabilities" else logits
        made.append(
            Predictions.from_arrays(
                ids=[f"s{j}" for j in order],
                targets=[classes[t] if names else int(t) for t in targets[order]],
                class_names=[classes[p] for p in places] if names else None,
                slices={"site": [f"site{j % 4}" for j in order]},
                name=f"member{i}",
                **{kind: values},
            )
        )
    return made


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_average_is_the_average(kind: str, names: bool, dtype: type) -> None:
    given = members(kind=kind, names=names, dtype=dtype)
    found = ensemble(given)
    tables = [rows(member) for member in given]
    assert found.scores is not None
    assert found.scores.kind == kind
    assert found.scores.array.dtype == dtype
    assert list(rows(found)) == list(tables[0])
    for key, scores in rows(found).items():
        for name, value in scores.items():
            plain = sum(table[key][name] for table in tables) / len(tables)
            assert value == pytest.approx(plain, rel=1e-6 if dtype == np.float32 else 1e-14)


def test_the_order_targets_and_slices_are_the_first_members() -> None:
    given = members()
    found, first = ensemble(given, name="paragon"), given[0]
    assert found.name == "paragon"
    assert (found.id, found.target, found.label) == ("id", "target", None)
    assert found.class_names == first.class_names
    columns = ["id", "target", "site"]
    assert found.frame.select(columns).collect().equals(first.frame.select(columns).collect())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_from_files_to_a_file(tmp_path: Path, suffix: str) -> None:
    given = members()
    for i, member in enumerate(given):
        write_predictions(member, tmp_path / f"{i}{suffix}")
    files = [read_predictions(tmp_path / f"{i}{suffix}") for i in range(3)]
    write_predictions(ensemble(files), tmp_path / f"out{suffix}")
    found = read_predictions(tmp_path / f"out{suffix}")
    merged = np.concatenate(list(scores_module.score_batches(found)))
    expected = ensemble(given)
    assert expected.scores is not None
    np.testing.assert_allclose(merged, expected.scores.array, rtol=1e-14)
    result = compare(old=expected, new=found)
    assert result["churn"].value == 0.0
    assert result.n == 40


def test_many_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ensemble(members(n=1000))
    monkeypatch.setattr(scores_module, "BYTES_PER_READ", 1)
    pieces = ensemble(members(n=1000))
    assert whole.scores is not None
    assert pieces.scores is not None
    np.testing.assert_array_equal(whole.scores.array, pieces.scores.array)


def test_without_ids_rows_meet_by_position() -> None:
    one, two = np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([[3.0, 0.0], [1.0, 1.0]])
    found = ensemble([Predictions.from_arrays(logits=a) for a in (one, two)])
    assert found.id is None
    assert found.scores is not None
    assert found.scores.array.tolist() == [[2.0, 1.0], [2.0, 0.5]]
    assert found.height == 2


def test_a_label_has_no_say() -> None:
    one = Predictions.from_arrays(ids=[1], labels=[1], logits=np.array([[3.0, 0.0]]))
    two = Predictions.from_arrays(ids=[1], labels=[0], logits=np.array([[1.0, 0.0]]))
    found = ensemble([one, two])
    assert found.label is None
    assert found.columns == ["id"]


def test_integers_and_numbered_names_are_the_same_classes() -> None:
    one = Predictions.from_arrays(ids=[7], logits=np.array([[1.0, 0.0]]))
    two = Predictions.from_arrays(ids=["7"], logits=np.array([[4.0, 1.0]]), class_names=["1", "0"])
    found = ensemble([one, two])
    assert found.scores is not None
    assert found.scores.array.tolist() == [[1.0, 2.0]]


def test_targets_may_be_in_any_member() -> None:
    def member(targets: list[object] | None) -> Predictions:
        return Predictions.from_arrays(ids=["a", "b"], targets=targets, logits=np.eye(2))

    found = ensemble([member(None), member(["x", None]), member([None, "y"])])
    assert found.target == "target"
    assert found.frame.select("target").collect().to_series().to_list() == ["x", "y"]
    assert ensemble([member(None), member(None)]).target is None


def test_mixed_precision_is_kept_double() -> None:
    one = Predictions.from_arrays(logits=np.eye(2, dtype=np.float32))
    two = Predictions.from_arrays(logits=np.eye(2, dtype=np.float64))
    found = ensemble([one, two])
    assert found.scores is not None
    assert found.scores.array.dtype == np.float64


def test_sums_are_taken_in_double_precision() -> None:
    values = [np.float32(1e8), np.float32(1.0), np.float32(-1e8)]
    made = [Predictions.from_arrays(logits=np.array([[v, 0.0]], np.float32)) for v in values]
    found = ensemble(made)
    assert found.scores is not None
    assert found.scores.array[0, 0] == np.float32(1 / 3)


# -- refusals ----------------------------------------------------------------------------------


def scored(name: str, values: object, *, ids: object = None, **more: object) -> Predictions:
    given = {"logits": np.asarray(values)} | more
    if "probabilities" in more:
        del given["logits"]
    return Predictions.from_arrays(ids=ids, name=name, **given)  # type: ignore[arg-type]


def test_one_member_is_no_ensemble() -> None:
    with pytest.raises(InputError, match="Expected at least 2 members to average, but got 1"):
        ensemble([scored("one", np.eye(2))])


def test_labels_cannot_be_averaged() -> None:
    labels = Predictions.from_arrays(labels=[0, 1], name="bare.csv")
    with pytest.raises(InputError, match=r"bare\.csv has labels but no class scores"):
        ensemble([scored("one", np.eye(2)), labels])


def test_logits_and_probabilities_do_not_mix() -> None:
    with pytest.raises(InputError, match="one has logits and two has probabilities"):
        ensemble([scored("one", np.eye(2)), scored("two", None, probabilities=np.eye(2))])


def test_other_classes_are_named() -> None:
    one = scored("one", np.eye(2), class_names=["cat", "dog"])
    two = scored("two", np.eye(2), class_names=["cat", "cow"])
    with pytest.raises(InputError, match="two has no class 'dog', one has no class 'cow'; average"):
        ensemble([one, two])
    with pytest.raises(InputError, match="two has no class 2; average models of the same classes"):
        ensemble([scored("one", np.eye(3)), scored("two", np.eye(3)[:, :2])])
    with pytest.raises(InputError, match="name the classes of the scores in two too"):
        ensemble([one, scored("two", np.eye(2))])


def test_missing_ids_are_named() -> None:
    one = scored("one", np.eye(3), ids=["a", "b", "c"])
    two = scored("two", np.eye(3), ids=["a", "b", "d"])
    with pytest.raises(InputError, match="one has 1 id that two lacks: 'c'"):
        ensemble([one, two])
    with pytest.raises(InputError, match="one has 1 id that three lacks: 'c'"):
        ensemble([one, one, scored("three", np.eye(3)[:2], ids=["a", "b"])])


def test_targets_must_agree_between_all_members() -> None:
    one = scored("one", np.eye(2), ids=["a", "b"])
    two = scored("two", np.eye(2), ids=["a", "b"], targets=[0, 1])
    three = scored("three", np.eye(2), ids=["b", "a"], targets=[1, 1])
    with pytest.raises(InputError, match="two and three disagree on the target of id 'a'"):
        ensemble([one, two, three])
    with pytest.raises(InputError, match="two and three disagree on the target of id 'a'"):
        ensemble([two, three])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    values = np.eye(3)
    values[1, 0] = bad
    one = scored("one", np.eye(3), ids=["a", "b", "c"])
    two = scored("two", values, ids=["c", "b", "a"])
    with pytest.raises(InputError, match="two has NaN or infinite logits for id 'b'"):
        ensemble([one, two])


def test_huge_logits_are_numbers_still() -> None:
    found = ensemble([scored("one", [[1e308, 1e308]]), scored("two", [[0.0, 0.0]])])
    assert found.scores is not None
    assert found.scores.array.tolist() == [[5e307, 5e307]]


def test_probabilities_must_be_some() -> None:
    good = scored("one", None, probabilities=np.full((2, 2), 0.5), ids=["a", "b"])
    for values, told in (
        (
            [[0.5, 0.5], [0.5, 0.4]],
            "two has probabilities that sum to 0.9 instead of 1, for id 'b'",
        ),
        ([[1.5, -0.5], [0.5, 0.5]], r"two has a probability below 0 \(-0.5\), for id 'a'"),
        ([[0.5, 0.5], [np.nan, 0.5]], "two has NaN or infinite probabilities for id 'b'"),
    ):
        two = scored("two", None, probabilities=np.array(values), ids=["a", "b"])
        with pytest.raises(InputError, match=told):
            ensemble([good, two])


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,logit_x,logit_y\n1,1,2\n2,1,2\n")
    (tmp_path / "b.csv").write_text("id,logit_x,logit_y\n1,1,2\n2,oops,2\n")
    files = [read_predictions(tmp_path / name) for name in ("a.csv", "b.csv")]
    with pytest.raises(InputError, match=r"b\.csv has 'oops' in score column 'logit_x'"):
        ensemble(files)


def test_short_rows_are_named() -> None:
    frame = pl.DataFrame({"id": ["a", "b"], "logits": [[1.0, 2.0], [1.0]]})
    short = Predictions.from_frame(frame, name="short")
    whole = scored("whole", np.eye(2), ids=["a", "b"])
    with pytest.raises(InputError, match=r"short has 1 scores in column 'logits' .* for id 'b'"):
        ensemble([whole, short])
