"""Errors of losses: one sentence with what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard import InputError, losses
from flipguard.losses import SharedClasses

LOGITS, WIDER, MORE = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(3, 3)
TARGET = torch.tensor([0, 1])
FILTERS = "'old_right', 'all', 'new_wrong', 'negative_flip'"
WHOLE = "Expected `k` to be a whole number of at least 1, or None for all classes, but got"
MATCH = "say which are the same with `classes=SharedClasses.by_name(old=..., new=...)`."


@dataclass(frozen=True)
class Refused:
    what: str
    call: Callable[[], object]
    sentence: str


def focal(**changes: Any) -> Callable[[], Tensor]:
    arguments = {"new": LOGITS, "old": LOGITS, "target": TARGET, **changes}
    return lambda: losses.focal_distillation(**arguments)


def inhibition(**changes: Any) -> Callable[[], Tensor]:
    arguments = {"new": LOGITS, "reference": LOGITS, **changes}
    return lambda: losses.logit_difference_inhibition(**arguments)


def alleviating(**changes: Any) -> Callable[[], Tensor]:
    arguments = {"new_features": LOGITS, "old_features": LOGITS, "target": TARGET, **changes}
    return lambda: losses.regression_alleviating(**arguments)


def compatible(**changes: Any) -> Callable[[], Tensor]:
    arguments = {"new_features": LOGITS, "weight": torch.zeros(4, 3), "target": TARGET, **changes}
    return lambda: losses.backward_compatible(**arguments)


def confusion(**changes: Any) -> Callable[[], Tensor]:
    arguments = {"predicted": TARGET, "target": TARGET, "classes": 2, **changes}
    return lambda: losses.estimate_confusion(**arguments)


def update(**changes: Any) -> Callable[[], object]:
    arguments = {
        "old": LOGITS,
        "new": LOGITS,
        "old_confusion": torch.eye(3),
        "new_confusion": torch.eye(3),
        **changes,
    }
    return lambda: losses.bayesian_update(**arguments)


TENSORS = [
    Refused(
        "old of other width",
        focal(old=WIDER),
        f"Expected `old` to have the 3 classes of `new`, but got 4; {MATCH}",
    ),
    Refused(
        "a reference of other width",
        inhibition(reference=WIDER),
        f"Expected `reference` to have the 3 classes of `new`, but got 4; {MATCH}",
    ),
    Refused(
        "old of another batch",
        focal(old=MORE),
        "Expected `old` to have the samples of `new`, [2], but got [3]; both must come from the "
        "same batch.",
    ),
    Refused(
        "old on another device",
        focal(old=LOGITS.to("meta")),
        "Expected `old` to be on the device of `new`, cpu, but got meta; move it there.",
    ),
    Refused(
        "a target on another device",
        focal(target=TARGET.to("meta")),
        "Expected `target` to be on the device of `new`, cpu, but got meta; move it there.",
    ),
    Refused(
        "labels for logits",
        focal(new=LOGITS.long()),
        "Expected `new` to be floating-point scores, but got int64; pass what the model gives "
        "before its softmax, not labels.",
    ),
    Refused(
        "old's labels for its logits",
        focal(old=LOGITS.int()),
        "Expected `old` to be floating-point scores, but got int32; pass what the model gives "
        "before its softmax, not labels.",
    ),
    Refused(
        "a list for logits",
        focal(new=[[1.0]]),
        "Expected `new` to be a tensor, but got list; pass a tensor.",
    ),
    Refused(
        "no classes",
        focal(new=LOGITS[:, :0], old=LOGITS[:, :0]),
        "Expected `new` to have the shape [samples, classes], but got [2, 0].",
    ),
    Refused(
        "a number for logits",
        focal(new=torch.tensor(1.0)),
        "Expected `new` to have the shape [samples, classes], but got [].",
    ),
    Refused(
        "a target for fewer samples",
        focal(target=TARGET[:1]),
        "Expected `target` to have the samples of the scores, [2], but got the shape [1]; "
        "give one class index for each sample, or soft targets as floats.",
    ),
    Refused(
        "a target in a column",
        focal(target=TARGET[:, None]),
        "Expected `target` to have the samples of the scores, [2], but got the shape [2, 1]; "
        "give one class index for each sample, or soft targets as floats.",
    ),
    Refused(
        "class indices as floats",
        focal(target=TARGET.float()),
        "Expected soft targets to have the samples and classes of the new model, [2, 3], but "
        "got [2]; class indices must be integers.",
    ),
    Refused(
        "soft targets of other width",
        focal(target=WIDER),
        "Expected soft targets to have the samples and classes of the new model, [2, 3], but "
        "got [2, 4]; class indices must be integers.",
    ),
    Refused(
        "a mask for a target",
        focal(target=TARGET.bool()),
        "Expected `target` to be class indices, or floats for soft targets, but got bool; "
        "convert it with `.long()`.",
    ),
    Refused(
        "a list for a target",
        focal(target=[0, 1]),
        "Expected `target` to be a tensor, but got list; pass a tensor.",
    ),
    Refused(
        "focus without a target",
        inhibition(focus=1.0),
        "Expected `target` where `focus` is not 0, but got none; the filter asks whether the "
        "reference is right.",
    ),
    Refused(
        "two peers of unlike width",
        lambda: losses.codistillation(first=LOGITS, second=WIDER),
        "Expected `second` to have the 3 classes of `first`, but got 4; both must come from "
        "models of the same classes.",
    ),
    Refused(
        "two peers of unlike batches",
        lambda: losses.codistillation(first=LOGITS, second=MORE),
        "Expected `second` to have the samples of `first`, [2], but got [3]; both must come from "
        "the same batch.",
    ),
    Refused(
        "a control of other width",
        lambda: losses.muscle(new=LOGITS, old=LOGITS, target=TARGET, control=WIDER),
        "Expected `control` to have the 3 classes of `new`, but got 4; both must come from "
        "models of the same classes.",
    ),
    Refused(
        "soft targets among features",
        alleviating(target=LOGITS),
        "Expected `target` to be class indices, but got soft targets; which samples are of "
        "one class is not defined for mixtures of classes, so take their argmax or leave this"
        " out.",
    ),
    Refused(
        "features of unlike width",
        alleviating(old_features=WIDER),
        "Expected `new_features` to be as wide as old's, 4, or a projection [4, 3], but got "
        "the width 3 and no projection; say `width=` when the module is made, and it learns "
        "one.",
    ),
    Refused(
        "features of another batch",
        alleviating(old_features=MORE),
        "Expected `old_features` to have the samples of `new_features`, [2], but got [3]; both "
        "must come from the same batch.",
    ),
    Refused(
        "a projection to nowhere",
        lambda: losses.RegressionAlleviating(width=3),
        "Expected `old_width` where `width` is given, but got none; both say what to project.",
    ),
    Refused(
        "features that old's head does not fit",
        compatible(weight=torch.zeros(4, 5)),
        "Expected `new_features` to be as wide as old's, 5, or a projection [5, 3], but got "
        "the width 3 and no projection; say `width=` when the module is made, and it learns "
        "one.",
    ),
    Refused(
        "a head of other classes",
        compatible(classes=SharedClasses.by_index([0, 1], old_count=3)),
        "Expected old's head to have a weight [3, width] and a bias [3], one row per old"
        " class, but got [4, 3] and None; pass those of its last linear layer.",
    ),
    Refused(
        "a head that is none",
        lambda: losses.BackwardCompatible(head=nn.Identity()),
        "Expected `head` to be old's last linear layer, but got Identity.",
    ),
    Refused(
        "scores for what was predicted",
        confusion(predicted=LOGITS),
        "Expected `predicted` to be class indices, but got scores; take their argmax first.",
    ),
    Refused(
        "a confusion of other classes",
        update(old_confusion=torch.eye(2)),
        "Expected `old_confusion` to be a tensor of the shape [3, 3], but got [2, 2]; "
        "`estimate_confusion` makes it, with a row for each class.",
    ),
    Refused(
        "votes of unlike width",
        update(old=WIDER),
        "Expected `old` to have the 3 classes of `new`, but got 4; both must come from models"
        " of the same classes.",
    ),
]

OPTIONS = [
    ("distance", "l2", "'logits', 'kl'", losses.FocalDistillation),
    ("filter", "right", FILTERS, losses.FocalDistillation),
    ("direction", "back", "'forward', 'reverse'", losses.FocalDistillation),
    ("class_reduction", "max", "'mean', 'sum'", losses.FocalDistillation),
    ("direction", "back", "'forward', 'reverse'", losses.KnowledgeDistillation),
    ("rank_by", "teacher", "'student', 'reference', 'both'", losses.LogitDifferenceInhibition),
    ("filter", "right", FILTERS, losses.LogitDifferenceInhibition),
    ("class_reduction", "max", "'mean', 'sum'", losses.LogitDifferenceInhibition),
    ("kind", "kl", "'skl', 'ce', 'l1'", losses.CoDistillation),
    ("kind", "cosine", "'linear', 'step', 'none'", losses.Ramp),
]

MODULES = [
    losses.FocalDistillation,
    losses.KnowledgeDistillation,
    losses.LogitDifferenceInhibition,
    losses.NaiveCongruence,
    losses.NewError,
    losses.StrictImitation,
    losses.EntropyRegularizer,
    losses.UniformDivergence,
    losses.CoDistillation,
    losses.Muscle,
    losses.RegressionAlleviating,
]

NUMBERS = [
    *(
        (module, {"temperature": value}, f"a number above 0, but got {value}.")
        for module in (
            losses.FocalDistillation,
            losses.KnowledgeDistillation,
            losses.Muscle,
            losses.RegressionAlleviating,
        )
        for value in (0, -1.0, float("nan"), float("inf"))
    ),
    *(
        (module, {name: value}, f"a number of at least {least}, but got {value}.")
        for module, name, value, least in (
            (losses.LogitDifferenceInhibition, "p", 0.5, 1),
            (losses.LogitDifferenceInhibition, "p", float("nan"), 1),
            (losses.LogitDifferenceInhibition, "margin", -0.1, 0),
            (losses.FocalDistillation, "base", -1.0, 0),
            (losses.LogitDifferenceInhibition, "base", -1.0, 0),
            (losses.LogitDifferenceInhibition, "focus", -1.0, 0),
            (losses.UniformDivergence, "floor", -1e-7, 0),
            (losses.UniformDivergence, "floor", float("nan"), 0),
            (losses.FocalDistillation, "focus", -1.0, 0),
            (losses.Ramp, "strength", -1.0, 0),
        )
    ),
]

CLASSES = [
    Refused(
        "a preset that is none",
        lambda: losses.FocalDistillation(preset="print"),
        "Expected `preset` to be 'paper', but got 'print'.",
    ),
    Refused(
        "a temperature that single precision cannot hold",
        focal(distance="kl", temperature=5000.0),
        "Expected `temperature` to be at most 1,000 below float64, but got 5000; probabilities "
        "then differ by less than they are rounded. Match the logits instead "
        '(`distance="logits"`), which is what the divergence tends to.',
    ),
    Refused(
        "a burn-in of half a step",
        lambda: losses.Ramp("step", steps=0.5),
        "Expected `steps` to be a whole number of at least 0, but got 0.5.",
    ),
    Refused(
        "a burn-in before the start",
        lambda: losses.Ramp("step", steps=-1),
        "Expected `steps` to be a whole number of at least 0, but got -1.",
    ),
    Refused(
        "a target that is no class",
        focal(target=torch.tensor([0, 7])),
        "Expected `target` to hold classes of the new model, 0 to 2, but got 7; mark samples "
        "without a target with `ignore_index`.",
    ),
    Refused(
        "a name of old twice",
        lambda: SharedClasses.by_name(old=["a", "b", "a"], new=["a"]),
        "Expected the class names of `old` to be unique, but got 'a' more than once.",
    ),
    Refused(
        "names of new twice",
        lambda: SharedClasses.by_name(old=["a"], new=["b", "b", "a", "a"]),
        "Expected the class names of `new` to be unique, but got 'a', 'b' more than once.",
    ),
    Refused(
        "no name in common",
        lambda: SharedClasses.by_name(old=["a"], new=["b"]),
        "Expected old and new to share a class, but got none in common; without one there is "
        "nothing to be congruent with.",
    ),
    Refused(
        "no index in common",
        lambda: SharedClasses.by_index([-1, -1], old_count=2),
        "Expected old and new to share a class, but got none in common; without one there is "
        "nothing to be congruent with.",
    ),
    Refused(
        "an index beyond old's classes",
        lambda: SharedClasses.by_index([0, 5], old_count=2),
        "Expected the index map to hold -1 or classes of old, 0 to 1, but got 5; write -1 for a "
        "class that old lacks.",
    ),
    Refused(
        "an index below -1",
        lambda: SharedClasses.by_index([0, -2], old_count=2),
        "Expected the index map to hold -1 or classes of old, 0 to 1, but got -2; write -1 for a "
        "class that old lacks.",
    ),
    Refused(
        "an index twice",
        lambda: SharedClasses.by_index([0, 0, 1], old_count=2),
        "Expected each class of old to be one class of new, but got 0 twice in the index map.",
    ),
    Refused(
        "new of other width than the match",
        focal(classes=SharedClasses.by_index([0, 1], old_count=3)),
        "Expected `new` to have the 2 classes that `classes` speaks of, but got 3; match the "
        "classes of these two models.",
    ),
    Refused(
        "old of other width than the match",
        focal(classes=SharedClasses.by_index([0, 1, -1], old_count=2)),
        "Expected `old` to have the 2 classes that `classes` speaks of, but got 3; match the "
        "classes of these two models.",
    ),
]

# Which words refuse these is open; that they are refused is not.
SOMEHOW = {
    "a bias of other classes": compatible(bias=torch.zeros(3)),
    "a prior of other classes": update(prior=torch.ones(2) / 2),
    "a confusion module of other classes": lambda: losses.BayesianUpdate(
        old_confusion=torch.eye(3), new_confusion=torch.zeros(2, 3)
    ),
    "a confusion module of a list": lambda: losses.BayesianUpdate(
        old_confusion=torch.ones(3), new_confusion=torch.eye(3)
    ),
    "soft targets for a confusion": confusion(target=LOGITS),
    "a target for a confusion of other samples": confusion(target=TARGET[:1]),
    "a class beyond the confusion's": confusion(predicted=torch.tensor([2, 0])),
    "a target beyond the confusion's": confusion(target=torch.tensor([0, 2])),
    "a confusion of no classes": confusion(classes=0),
    "a confusion of half a class": confusion(classes=2.5),
    "a confusion table that is none": update(old_confusion=[[1.0]]),
    "a reference of other width": lambda: losses.knowledge_distillation(
        new=LOGITS, reference=WIDER
    ),
    "a confusion smoothed below nothing": confusion(smoothing=-1.0),
    "a cost that is no ratio": update(cost_ratio=0.0),
    "labels for votes": update(old=TARGET, new=TARGET),
    "an index between two classes": lambda: SharedClasses.by_index([0.5, 1], old_count=2),
}


def sentence_of(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as refusal:
        call()
    return str(refusal.value)


def assert_reads_well(sentence: str) -> None:
    assert sentence.startswith("Expected ")
    assert ", but got " in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "tensor(" not in sentence


@pytest.mark.parametrize("refused", [*TENSORS, *CLASSES], ids=lambda refused: refused.what)
def test_what_does_not_fit_is_refused(refused):
    sentence = sentence_of(refused.call)
    assert sentence == refused.sentence
    assert_reads_well(sentence)


@pytest.mark.parametrize(("name", "value", "known", "module"), OPTIONS)
def test_an_unknown_option_is_told_the_known_ones(name, value, known, module):
    sentence = sentence_of(lambda: module(**{name: value}))
    assert sentence == f"Expected `{name}` to be one of {known}, but got {value!r}."


@pytest.mark.parametrize("module", MODULES)
def test_a_reduction_is_checked_when_the_module_is_made(module):
    sentence = sentence_of(lambda: module(reduction="average"))
    assert sentence == (
        "Expected `reduction` to be one of 'mean', 'sum', 'none', but got 'average'."
    )


@pytest.mark.parametrize(("module", "options", "end"), NUMBERS)
def test_a_number_out_of_bounds_is_told_the_bound(module, options, end):
    (name,) = options
    assert sentence_of(lambda: module(**options)) == f"Expected `{name}` to be {end}"


def test_a_floor_that_single_precision_cannot_divide_by_is_refused():
    told = sentence_of(lambda: losses.UniformDivergence(floor=1e-39))
    assert told.startswith("Expected `floor` to be 0 or at least 1e-30, below which")
    assert sentence_of(lambda: losses.uniform_divergence(new=LOGITS, floor=1e-39)) == told


def test_the_hottest_temperature_is_allowed_and_in_double_precision_any():
    focal(distance="kl", temperature=1000.0)()
    wide = LOGITS.double()
    focal(distance="kl", temperature=5000.0, new=wide, old=wide)()


@pytest.mark.parametrize("k", [0, -2, 2.5, True])
@pytest.mark.parametrize(
    "module",
    [losses.LogitDifferenceInhibition, losses.EntropyRegularizer, losses.UniformDivergence],
)
def test_how_many_classes_is_a_whole_number(module, k):
    assert sentence_of(lambda: module(k=k)) == f"{WHOLE} {k!r}."


@pytest.mark.parametrize(
    "call",
    [
        focal(distance="l2"),
        focal(reduction="average"),
        focal(temperature=0.0),
        inhibition(p=0.5),
        inhibition(k=0),
        inhibition(margin=-1.0),
        inhibition(rank_by="teacher"),
        alleviating(temperature=0.0),
        lambda: losses.entropy_regularizer(new=LOGITS, k=0),
        lambda: losses.uniform_divergence(new=TARGET),
        lambda: losses.codistillation(first=LOGITS, second=LOGITS, kind="kl"),
        lambda: losses.knowledge_distillation(new=LOGITS, reference=LOGITS, temperature=-1.0),
        lambda: losses.muscle(new=LOGITS, old=LOGITS, target=TARGET, temperature=0.0),
    ],
)
def test_functions_refuse_what_their_modules_do(call):
    assert_reads_well(sentence_of(call))


@pytest.mark.parametrize("call", SOMEHOW.values(), ids=SOMEHOW.keys())
def test_nothing_wrong_goes_through(call):
    assert_reads_well(sentence_of(call))


def test_tensors_are_given_by_name():
    with pytest.raises(TypeError):
        losses.focal_distillation(LOGITS, LOGITS, TARGET)
    with pytest.raises(TypeError):
        losses.FocalDistillation()(LOGITS, LOGITS, TARGET)
