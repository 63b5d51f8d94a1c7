"""Two models in memory: what they predict is what a caller would predict with them."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import flipguard as fg
from flipguard import inference

X, Y = make_classification(
    n_samples=600, n_features=8, n_informative=5, n_classes=3, random_state=0
)
TRAIN, TEST = slice(0, 300), slice(300, 600)
NAMES = np.array(["cat", "dog", "fox"])


def fitted(model: Any, target: np.ndarray = Y) -> Any:
    return model.fit(X[TRAIN], target[TRAIN])


OLD = fitted(LogisticRegression(max_iter=300))
NEW = fitted(RandomForestClassifier(20, random_state=0, n_jobs=1))


def by_hand(old: Any, new: Any, target: np.ndarray = Y) -> dict[str, Any]:
    """The document of the comparison of what a caller predicts, in one piece."""
    sides = {}
    for name, model in (("old", old), ("new", new)):
        given: dict[str, Any] = {"labels": model.predict(X[TEST])}
        if hasattr(model, "predict_proba"):
            given["probabilities"] = model.predict_proba(X[TEST])
            given["class_names"] = model.classes_.tolist()
        sides[name] = fg.Predictions.from_arrays(
            **given, targets=target[TEST], ids=np.arange(300), name=name
        )
    return fg.compare(**sides).as_dict()


@pytest.mark.parametrize("batch_size", [1, 7, 100, 300, 5000])
def test_scikit_learn_in_batches_of_any_size(batch_size: int) -> None:
    found = fg.compare_models(
        old=OLD, new=NEW, inputs=X[TEST], target=Y[TEST], batch_size=batch_size
    )
    expected, document = by_hand(OLD, NEW), found.as_dict()
    assert document["counts"] == expected["counts"]
    assert document["rows"] == expected["rows"]
    for name, metric in expected["metrics"].items():
        # A product of matrices may round differently in another batch.
        numbers = [math.nan if x is None else x for x in document["metrics"][name].values()]
        wanted = [math.nan if x is None else x for x in metric.values()]
        assert numbers == pytest.approx(wanted, rel=1e-6, nan_ok=True), name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (RidgeClassifier(), LogisticRegression(max_iter=300)),
        (RidgeClassifier(), RidgeClassifier(alpha=100.0)),
        (make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)), RidgeClassifier()),
    ],
    ids=["one of them without scores", "labels", "pipeline"],
)
@pytest.mark.parametrize(
    "target",
    [Y, NAMES[Y], Y.astype(float), Y == 0],
    ids=["integers", "names", "floats", "Booleans"],
)
def test_kinds_of_models_and_of_classes(old: Any, new: Any, target: np.ndarray) -> None:
    old, new = (fitted(model, target) for model in (old, new))
    found = fg.compare_models(old=old, new=new, inputs=X[TEST], target=target[TEST])
    assert found.as_dict() == by_hand(old, new, target)
    right = [model.predict(X[TEST]) == target[TEST] for model in (old, new)]
    assert found["negative_flip_rate"].value == pytest.approx((right[0] & ~right[1]).mean())


def test_a_model_that_does_not_choose_its_largest_probability() -> None:
    target = (Y == 0).astype(int)
    model = FixedThresholdClassifier(LogisticRegression(max_iter=300), threshold=0.2)
    plain, shifted = fitted(LogisticRegression(max_iter=300), target), fitted(model, target)
    assert (shifted.predict(X[TEST]) != shifted.predict_proba(X[TEST]).argmax(axis=1)).any()
    found = fg.compare_models(old=plain, new=shifted, inputs=X[TEST], target=target[TEST])
    churn = (plain.predict(X[TEST]) != shifted.predict(X[TEST])).mean()
    assert found["churn"].value == pytest.approx(churn) != 0


INPUTS = {
    "array": lambda x: x,
    "pandas": lambda x: pd.DataFrame(x),
    "polars": lambda x: pl.DataFrame(x, schema=[f"f{i}" for i in range(x.shape[1])]),
    "lazy": lambda x: pl.DataFrame(x, schema=[f"f{i}" for i in range(x.shape[1])]).lazy(),
    "pyarrow": lambda x: pa.table({f"f{i}": x[:, i] for i in range(x.shape[1])}),
    "list": lambda x: x.tolist(),
    "sparse": sparse.csr_array,
    "torch": torch.tensor,
}


@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_inputs_in_every_form(form: str) -> None:
    given = INPUTS[form](X[TEST])

    def model(estimator: Any) -> Any:
        if form != "pyarrow":
            return estimator
        return lambda batch: estimator.predict(np.column_stack(batch.columns))

    found = fg.compare_models(
        old=model(OLD), new=model(NEW), inputs=given, target=Y[TEST], batch_size=90
    )
    assert found.as_dict()["counts"] == by_hand(OLD, NEW)["counts"]


def test_columns_and_the_index_of_the_inputs() -> None:
    frame = pd.DataFrame(X[TEST], index=[f"s{i}" for i in range(300)]).rename(columns=str)
    frame["weather"] = np.where(np.arange(300) % 3, "sun", "rain")
    features = frame.columns[:8]
    old, new = (lambda batch, m=m: m.predict(batch[features].to_numpy()) for m in (OLD, NEW))
    target = pd.Series(Y[TEST], index=frame.index)
    found = fg.compare_models(
        old=old, new=new, inputs=frame, target=target, by=["weather", "target"], id="index"
    )
    assert {group.name: group.n for group in found.by["weather"]} == {"rain": 100, "sun": 200}
    assert set(found.flips()["id"]) <= set(frame.index)
    rows = fg.compare_models(old=old, new=new, inputs=frame, target=target)
    assert {f"s{i}" for i in rows.flips()["id"]} == set(found.flips()["id"])
    named = fg.compare_models(old=old, new=new, inputs=frame, target=target, id=frame.index)
    assert named.flips()["id"].equals(found.flips()["id"])
    with pytest.raises(fg.InputError, match="Expected `inputs` and `target` to have one index"):
        fg.compare_models(old=old, new=new, inputs=frame, target=target.iloc[::-1])
    with pytest.raises(fg.InputError, match="have no column 'nokey', which `id=` asks"):
        fg.compare_models(old=old, new=new, inputs=frame, target=target, id="nokey")
    with pytest.raises(fg.InputError, match="have no column 'wether', which `by=` asks for; did y"):
        fg.compare_models(old=old, new=new, inputs=frame, target=target, by="wether")


def test_controls_options_and_names() -> None:
    others = [fitted(RandomForestClassifier(20, random_state=i, n_jobs=1)) for i in (1, 2)]
    found = fg.compare_models(
        old=OLD,
        new=NEW,
        inputs=X[TEST],
        target=Y[TEST],
        control=others,
        confidence=0.9,
        name_old="v1",
        name_new="v2",
        wants=["flips"],
    )
    assert (found.old, found.new, found.confidence) == ("v1", "v2", 0.9)
    assert found.controls == ("control 1", "control 2")
    one = fg.compare_models(old=OLD, new=NEW, inputs=X[TEST], target=Y[TEST], control=others[0])
    expected = (OLD.predict(X[TEST]) != others[0].predict(X[TEST])).sum()
    assert one.controls == ("control",)
    assert one.counts.control(0).different == expected


# -- torch -----------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    """A network with parts that behave differently in training, and one that is always frozen."""

    def __init__(self, seed: int, form: str = "tensor") -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.form = form
        self.norm = torch.nn.BatchNorm1d(8)
        self.frozen = torch.nn.Dropout(0.9).eval()
        self.drop, self.head = torch.nn.Dropout(0.9), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        found = self.head(self.drop(self.frozen(self.norm(x))))
        match self.form:
            case "mapping":
                return {"logits": found}
            case "object":
                return type("Output", (), {"logits": found})()
            case "probabilities":
                return found.softmax(dim=1)
            case "labels":
                return found.argmax(dim=1)
            case "half":
                return found.softmax(dim=1).bfloat16()
        return found


def logits_of(net: Net) -> np.ndarray:
    form, net.form = net.form, "tensor"
    modes = [part.training for part in net.modules()]
    with torch.no_grad():
        found = net.eval()(torch.tensor(X[TEST], dtype=torch.float32)).numpy()
    for part, mode in zip(net.modules(), modes, strict=True):
        part.training = mode
    net.form = form
    return found


@pytest.mark.parametrize("form", ["tensor", "mapping", "object"])
@pytest.mark.parametrize("inputs", ["array", "torch", "pandas", "list"])
def test_a_torch_module_gives_logits(form: str, inputs: str) -> None:
    old, new = Net(0, form), Net(1, form)
    modes = [part.training for part in old.modules()]
    given = {
        "array": X[TEST],
        "torch": torch.tensor(X[TEST]),
        "pandas": pd.DataFrame(X[TEST]),
        "list": X[TEST].tolist(),
    }[inputs]
    found = fg.compare_models(old=old, new=new, inputs=given, target=Y[TEST], class_names=[*"abc"])
    expected = fg.compare(
        old=logits_of(old),
        new=logits_of(new),
        target=Y[TEST],
        scores="logits",
        class_names=[*"abc"],
    )
    assert found["logit_displacement"].value == pytest.approx(expected["logit_displacement"].value)
    assert found.counts.different == expected.counts.different
    assert [part.training for part in old.modules()] == modes


def test_a_torch_module_with_named_inputs_and_labels() -> None:
    found = fg.compare_models(
        old=Net(0, "labels"), new=Net(1), inputs={"x": X[TEST]}, target=Y[TEST], batch_size=64
    )
    labels = [logits_of(Net(i)).argmax(axis=1) for i in (0, 1)]
    assert found["churn"].value == pytest.approx((labels[0] != labels[1]).mean())


def test_probabilities_of_a_torch_module_are_not_taken_for_logits() -> None:
    for form in ("probabilities", "half"):
        given = {"old": Net(0, form), "new": Net(1, form), "inputs": X[TEST], "target": Y[TEST]}
        with pytest.raises(
            fg.InputError, match=r"Expected `scores=`, because `old` returns arrays"
        ):
            fg.compare_models(**given)
    given = {"old": Net(0, "probabilities"), "new": Net(1, "probabilities")}
    found = fg.compare_models(**given, inputs=X[TEST], target=Y[TEST], scores="probabilities")
    assert found["expected_calibration_error_old"].is_defined


def test_modes_are_restored_if_a_model_fails() -> None:
    net = Net(0)
    with pytest.raises(RuntimeError, match="running_mean"):
        fg.compare_models(old=net, new=net, inputs=X[TEST][:, :3], target=Y[TEST])
    assert net.training
    assert not net.frozen.training


# -- functions, and what is refused ----------------------------------------------------------------


def test_functions_of_a_batch() -> None:
    found = fg.compare_models(
        old=lambda batch: OLD.decision_function(batch),
        new=lambda batch: NEW.predict_proba(batch) * 5,
        inputs=X[TEST],
        target=Y[TEST],
        scores="logits",
    )
    labels = [OLD.predict(X[TEST]), NEW.predict_proba(X[TEST]).argmax(axis=1)]
    assert found["churn"].value == pytest.approx((labels[0] != labels[1]).mean())
    texts = ["good", "bad", "good film"] * 5
    found = fg.compare_models(
        old=lambda batch: ["good" in text for text in batch],
        new=lambda batch: [text == "good" for text in batch],
        inputs=texts,
        target=[True, False, True] * 5,
        batch_size=4,
    )
    assert found["negative_flip_rate"].value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"old": 5}, "Expected `old` to be a model with predict or predict_proba, .* but got 5"),
        ({"old": LogisticRegression}, "but got the class LogisticRegression"),
        (
            {"new": [0, 1]},
            r"Expected `new` to be a model .* for predictions use flipguard\.compare",
        ),
        ({"control": "v1"}, "Expected `control` to be a model"),
        ({"old": lambda x: x[:2, 0]}, r"for 300 inputs it returned an array of shape \(2,\)"),
        (
            {"old": lambda x: x},
            r"Expected `scores=`, because `old` returns arrays of shape \(n, 8\)",
        ),
        ({"old": lambda x: x[:, :, None]}, r"returned an array of shape \(300, 8, 1\)"),
        ({"inputs": []}, "Expected `inputs` to have at least one row"),
        ({"inputs": (x for x in X)}, "Expected `inputs` to be an array, .* but got generator"),
        ({"inputs": {"a": X, "b": X[:3]}}, "Expected every entry of `inputs` to have as many rows"),
        ({"batch_size": 0}, "Expected `batch_size` to be a whole number above 0, but got 0"),
        ({"scores": "softmax"}, "Expected `scores` to be probabilities or logits"),
        ({"target": "y"}, "Expected `target` to be values, one per input"),
        ({"target": Y[:5]}, r"old has arrays of different lengths \(id 300, target 5"),
    ],
)
def test_what_cannot_be_compared(given: dict[str, Any], sentence: str) -> None:
    usual = {"old": OLD, "new": NEW, "inputs": X[TEST], "target": Y[TEST]}
    with pytest.raises(fg.InputError, match=sentence) as caught:
        fg.compare_models(**{**usual, **given})
    assert "\n" not in str(caught.value)


def test_texts_for_a_torch_module() -> None:
    with pytest.raises(fg.InputError, match="Expected `inputs` of a torch module to be numbers"):
        fg.compare_models(old=Net(0), new=Net(1), inputs=["a", "b"], target=[0, 1])


def test_whole_numbers_are_no_targets_of_models_whose_classes_are_names() -> None:
    # 0 is "spam", but it is the last of the sorted classes.
    names = np.array(["spam", "ham", "eggs"])
    model = LogisticRegression(max_iter=300).fit(X[:200], names[Y[:200]])
    with pytest.raises(fg.InputError, match=r"hold names of the classes .*'eggs', 'ham'"):
        fg.compare_models(old=model, new=model, inputs=X[TEST], target=Y[TEST])
    told = fg.compare_models(old=model, new=model, inputs=X[TEST], target=names[Y[TEST]])
    assert told["error_rate_old"].value < 0.5
    digits = np.array(["0", "1", "2"])
    model = LogisticRegression(max_iter=300).fit(X[:200], digits[Y[:200]])
    result = fg.compare_models(old=model, new=model, inputs=X[TEST], target=Y[TEST])
    assert result["error_rate_old"] == told["error_rate_old"]


def test_a_bar_is_for_a_terminal_only(monkeypatch, capsys) -> None:
    told: list[tuple[int, int]] = []

    class Bar:
        def __enter__(self):
            return lambda done, total: told.append((done, total))

        def __exit__(self, *_):
            return False

    fg.compare_models(old=OLD, new=NEW, inputs=X[TEST], target=Y[TEST])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(inference, "bar_on_terminal", lambda _: Bar())
    fg.compare_models(old=OLD, new=NEW, inputs=X[TEST], target=Y[TEST], batch_size=100)
    assert told == [(done, 1200) for done in range(100, 1300, 100)]


def test_torch_is_not_imported_for_other_models() -> None:
    code = (
        "import sys, numpy as np, flipguard as fg\n"
        "model = lambda x: (x > 0).astype(int)\n"
        "fg.compare_models(old=model, new=model, inputs=np.arange(3), target=[0, 1, 1])\n"
        "print([n for n in ('pandas', 'torch', 'sklearn', 'rich') if n in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
