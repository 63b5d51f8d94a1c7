"""`compare_models()`: predict the same inputs with two models in memory, and compare them.

torch is not imported here: a torch module is recognised only if torch has been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.comparison import Comparison, compare
from flipguard.errors import InputError, listed, nearest
from flipguard.predictions.from_python import (
    as_array,
    is_frame,
    is_series,
    library_of,
    pandas_index,
)
from flipguard.predictions.sides import (
    INDEX,
    checked_column_name,
    names_to_group_by,
    refuse_different_indexes,
)
from flipguard.predictions.table import SCORE_KINDS, Predictions, ScoreKind
from flipguard.progress import bar_on_terminal

Array = npt.NDArray[Any]
Predict = Callable[[Any], Any]
# The largest distance of probabilities in half precision from a sum of 1.
ROUNDING_OF_SUMS = 1e-2


def compare_models(
    *,
    old: Any,
    new: Any,
    inputs: Any,
    target: Any = None,
    id: Any = None,
    control: Any = None,
    scores: ScoreKind | None = None,
    class_names: Sequence[object] | None = None,
    batch_size: int = 1024,
    by: str | Sequence[str] | None = (),
    cluster: str | None = None,
    **options: Any,
) -> Comparison:
    """Predict `inputs` with both models, and return what the update from `old` to `new` changes.

    A model has `predict_proba`, `predict` or both, or is a torch module or a function of a batch.
    A torch module gives logits, and any other model with `predict` alone gives labels, unless
    `scores` says what its scores are. Classes are `classes_` of the model, or `class_names`.

    `inputs` are an array, a tensor, a list, a table, or a dictionary of these. `id` is the values,
    a column of `inputs` or `"index"`; without it, ids are row numbers. `by` and `cluster` are
    columns of `inputs`, or `target`. `options` are other arguments of `compare`.

    >>> inputs = np.array([1.0, 2.0, 3.0, 4.0])
    >>> old, new = (lambda x: (x > 1.5).astype(int)), (lambda x: (x > 2.5).astype(int))
    >>> result = compare_models(old=old, new=new, inputs=inputs, target=[0, 1, 1, 1])
    >>> result.flips("negative")["id"].to_list()
    [1]
    """
    _refuse_thresholds(options)
    given = {"old": old, "new": new}
    if control is not None:
        several = list(control) if isinstance(control, list | tuple) else [control]
        many = len(several) > 1
        given |= {f"control {i}" if many else "control": m for i, m in enumerate(several, start=1)}
    rows = _Rows(inputs, batch_size)
    columns = names_to_group_by(by)
    checked_column_name(cluster, "cluster")
    described = {
        "ids": np.arange(rows.count) if id is None else rows.column(id, "id"),
        "targets": _targets(target, inputs),
        "slices": {**rows.groups(columns, "by"), **rows.groups([cluster], "cluster")},
    }
    models = [_Model.of(model, name, scores=scores) for name, model in given.items()]
    with bar_on_terminal("predicting") as told:
        total = rows.count * sum(len(model.calls) for model in models)
        done = 0
        for model in models:
            for part in model.outputs(rows):
                done += part
                if told is not None:
                    told(done, total)
    first, second, *controls = [model.predictions(described, class_names) for model in models]
    return compare(old=first, new=second, control=controls, by=by, cluster=cluster, **options)


def _refuse_thresholds(options: Mapping[str, Any]) -> None:
    for argument in ("positive_score", "threshold", "threshold_new", "positive"):
        if options.get(argument) is not None:
            raise InputError(
                f"Expected no `{argument}`, because compare_models takes labels or the scores of "
                "all classes; predict the scores of the positive class, and give them to "
                "flipguard.compare as 1-D arrays with `threshold=`."
            )


def _targets(target: Any, inputs: Any) -> Any:
    if isinstance(target, str):
        raise InputError(
            f"Expected `target` to be values, one per input, but got the text {target!r}; give the "
            "values, and leave their column out of the inputs of the models."
        )
    refuse_different_indexes(
        {"inputs": inputs, "target": target},
        way_out="give both in the same order, or give target.to_numpy() if the order is right",
    )
    return target


class _Rows:
    """The inputs in batches."""

    def __init__(self, inputs: Any, batch_size: int) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(
                f"Expected `batch_size` to be a whole number above 0, but got {batch_size!r}."
            )
        self.inputs = inputs.collect() if isinstance(inputs, pl.LazyFrame) else inputs
        self.count = _height(self.inputs)
        if not self.count:
            raise InputError("Expected `inputs` to have at least one row, but they are empty.")
        self._starts = range(0, self.count, batch_size)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for start in self._starts:
            stop = min(start + self._starts.step, self.count)
            yield stop - start, _part(self.inputs, start, stop)

    def column(self, given: Any, argument: str) -> Any:
        """Return values: those given, or those of a column or of the index with this name."""
        if not isinstance(given, str):
            return given
        index = pandas_index(self.inputs)
        if given not in self._columns and index is not None and given in (INDEX, index.name):
            return index
        return self.groups([given], argument)[given]

    @property
    def _columns(self) -> list[str]:
        if not is_frame(self.inputs):
            return []
        return list(getattr(self.inputs, "names_to_group_by", None) or self.inputs.columns)

    def groups(self, columns: Sequence[str | None], argument: str) -> dict[str, Any]:
        """Return the named columns of the inputs; the targets and None are not among them."""
        wanted = [name for name in columns if name not in (None, "target")]
        for name in wanted:
            if name not in self._columns:
                have = f"they have {listed(self._columns, most=12)}"
                all_in = have if self._columns else "give a table that has it in `inputs`"
                raise InputError(
                    f"The inputs have no column {name!r}, which `{argument}=` asks for; "
                    + nearest(str(name), map(str, self._columns), all_in=all_in)
                )
        return {str(name): self.inputs[name] for name in wanted}


def _height(inputs: Any) -> int:
    if isinstance(inputs, Mapping) and inputs:
        heights = {name: _height(values) for name, values in inputs.items()}
        if len(set(heights.values())) > 1:
            raise InputError(
                f"Expected every entry of `inputs` to have as many rows, but they have {heights}."
            )
        return next(iter(heights.values()))
    if getattr(inputs, "shape", ()):
        return int(inputs.shape[0])
    if isinstance(inputs, list | tuple) or is_series(inputs):
        return len(inputs)
    raise InputError(
        "Expected `inputs` to be an array, a tensor, a list, a table or a dictionary of these, one "
        f"row per sample, but got {type(inputs).__name__}; predict with both models yourself and "
        "give flipguard.compare their predictions."
    )


def _part(inputs: Any, start: int, stop: int) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _part(values, start, stop) for name, values in inputs.items()}
    if hasattr(inputs, "iloc"):
        return inputs.iloc[start:stop]
    if library_of(inputs) == "pyarrow":
        return inputs.slice(start, stop - start)
    return inputs[start:stop]


@dataclass(slots=True, kw_only=True)
class _Model:
    """A model, how it is called, and what its calls returned so far.

    `calls` are by what they return: "probabilities", "labels", or "either" of labels and scores.
    """

    argument: str
    model: Any
    calls: dict[str, Predict]
    scores: ScoreKind | None
    returned: dict[str, list[Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, argument: str, *, scores: ScoreKind | None) -> _Model:
        """Find how a model is called."""
        if scores is not None and scores not in SCORE_KINDS:
            raise InputError(
                f"Expected `scores` to be probabilities or logits, but got {scores!r}."
            )
        calls: dict[str, Predict] = {}
        if not isinstance(model, type):
            if _is_torch(model):
                calls["either"] = lambda batch: _torch_output(model, batch)
            elif callable(getattr(model, "predict_proba", None)):
                calls["probabilities"] = model.predict_proba
                if callable(getattr(model, "predict", None)):
                    # A model may choose another class than that of the largest probability.
                    calls["labels"] = model.predict
            elif callable(getattr(model, "predict", None)):
                calls["either"] = model.predict
            elif callable(model):
                calls["either"] = model
        if not calls:
            what = f"the class {model.__name__}" if isinstance(model, type) else f"{model!r:.60}"
            raise InputError(
                f"Expected `{argument}` to be a model with predict or predict_proba, a torch "
                f"module, or a function of a batch, but got {what}; for predictions use "
                "flipguard.compare."
            )
        return cls(argument=argument, model=model, calls=calls, scores=scores)

    def outputs(self, rows: _Rows) -> Iterator[int]:
        """Predict all rows, and yield the number of rows of each call."""
        with _evaluating(self.model) if _is_torch(self.model) else nullcontext():
            for kind, call in self.calls.items():
                found = self.returned[kind] = []
                for count, batch in rows:
                    found.append(self._checked(kind, call(batch), count))
                    yield count

    def _checked(self, kind: str, output: Any, count: int) -> Array:
        array = as_array(output, "predictions", f"`{self.argument}`")
        if array.ndim not in {"probabilities": (2,), "labels": (1,)}.get(kind, (1, 2)) or (
            len(array) != count
        ):
            raise InputError(
                f"Expected `{self.argument}` to return one label, or one row of class scores, per "
                f"input, but for {count:,} inputs it returned an array of shape {array.shape}."
            )
        return array

    def predictions(
        self, described: Mapping[str, Any], class_names: Sequence[object] | None
    ) -> Predictions:
        """Return all that was predicted as a side of a comparison."""
        found: dict[str, Any] = {
            kind: np.concatenate(parts) for kind, parts in self.returned.items()
        }
        if "either" in found:
            values = found.pop("either")
            found["labels" if values.ndim == 1 else self._kind(values)] = values
        scores = next((found[kind] for kind in SCORE_KINDS if kind in found), None)
        if class_names is None:
            self._refuse_indices(described["targets"])
        return Predictions.from_arrays(
            **found,
            **described,
            class_names=self._classes(class_names, scores),
            name=self.argument,
        )

    def _refuse_indices(self, target: Any) -> None:
        """Refuse whole numbers as targets of a model whose classes are names.

        They could be indices in any order of the classes, not only in that of `classes_`.
        """
        classes = np.asarray(getattr(self.model, "classes_", ()))
        if target is None or classes.dtype.kind not in "OU" or np.asarray(target).dtype.kind != "i":
            return
        names = [str(name) for name in classes.tolist()]
        if not all(name.lstrip("+-").isdecimal() for name in names):
            raise InputError(
                f"Expected `target` to hold names of the classes that `{self.argument}` predicts "
                f"({listed(names, most=5)}), but got whole numbers; give the names, or say by "
                "`class_names=` which number means which class."
            )

    def _kind(self, values: Array) -> ScoreKind:
        """Return what the scores of a model are that does not say so itself."""
        if self.scores is not None:
            return self.scores
        sums_to_one = np.abs(values.sum(axis=1, dtype=np.float64) - 1) <= ROUNDING_OF_SUMS
        if _is_torch(self.model) and not (sums_to_one.all() and values.min() >= 0):
            return "logits"
        raise InputError(
            f"Expected `scores=`, because `{self.argument}` returns arrays of shape "
            f"(n, {values.shape[1]}), which can be read in two ways; say scores='probabilities' or "
            "scores='logits', or return one label per input."
        )

    def _classes(
        self, class_names: Sequence[object] | None, scores: Array | None
    ) -> Sequence[object] | None:
        classes = getattr(self.model, "classes_", None)
        own = None if classes is None else np.asarray(classes).tolist()
        if own is None or scores is None or scores.shape[1] != len(own):
            return class_names
        # Indices that a model was trained with are called by the names that are given.
        is_index = class_names is not None and own == list(range(len(class_names)))
        return class_names if is_index else own


def _is_torch(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put a torch module into evaluation mode; afterwards each part has its own mode again."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with sys.modules["torch"].inference_mode():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def _torch_output(model: Any, batch: Any) -> Any:
    """Return the scores of a batch: the output of a torch module, or its `logits`."""
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if isinstance(batch, Mapping):
        output = model(**{name: _tensor(values, first) for name, values in batch.items()})
    else:
        output = model(_tensor(batch, first))
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    return getattr(output, "logits", output)


def _tensor(values: Any, like: Any) -> Any:
    """Return values as a tensor on the device of a parameter; floats also get its type."""
    torch = sys.modules["torch"]
    if not torch.is_tensor(values):
        values = values.to_numpy() if is_frame(values) else as_array(values, "rows", "inputs")
        try:
            values = torch.as_tensor(np.ascontiguousarray(values))
        except TypeError as problem:
            raise InputError(
                f"Expected `inputs` of a torch module to be numbers, but got {values.dtype}; give "
                "a tensor."
            ) from problem
    if like is None:
        return values
    return values.to(like.device, like.dtype if values.is_floating_point() else values.dtype)
