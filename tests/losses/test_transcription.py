"""Every loss against its plain transcription, value and gradient, and the rules that all keep."""

from __future__ import annotations

from inspect import signature
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from flipguard import losses
from tests.effort import tries
from tests.losses import transcription as plain
from tests.losses.table import IGNORED, ROWS, Case, Loss, features, randoms, scores, shared_classes
from tests.losses.transcription import Match

# What `flipguard.losses` has besides the losses.
OTHERS = {
    # in test_bayes.py
    "BayesianImitation",
    "bayesian_imitation",
    "BayesianDecision",
    "BayesianUpdate",
    "Ramp",
    "SharedClasses",
    "bayesian_update",
    "estimate_confusion",
}

TARGETED = {name: row for name, row in ROWS.items() if row.target}
SOFTENED = {name: row for name, row in ROWS.items() if row.soft}
MATCHING = {name: row for name, row in ROWS.items() if row.matches}
OF_LOGITS = {name: row for name, row in ROWS.items() if "new_features" not in row.learns}


def each(rows: dict[str, Loss]) -> Any:
    return pytest.mark.parametrize("loss", rows.values(), ids=rows.keys())


def close(value: Tensor, expected: Tensor, tolerance: float = 1e-9) -> bool:
    return value.shape == expected.shape and bool(
        torch.isclose(value, expected, rtol=tolerance, atol=tolerance).all()
    )


def assert_close(value: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert close(value, expected, tolerance), (value, expected)


def assert_same_results(
    loss: Loss, case: Case, other: Case, *, tolerance: float = 1e-12, **options: Any
) -> None:
    """Two cases, one value and one gradient."""
    value, gradients = loss.value_and_gradients(case, **options)
    expected, expected_gradients = loss.value_and_gradients(other, **options)
    assert_close(value, expected, tolerance)
    for got, wanted in zip(gradients, expected_gradients, strict=True):
        assert_close(got, wanted, tolerance)


def assert_nothing(loss: Loss, case: Case) -> None:
    """Zero, not nan, with a graph to walk and a gradient of exactly zero."""
    case = loss.learning(case)
    leaves = [case.tensors[name] for name in loss.learners(case)]
    for reduction in ("mean", "sum", "none"):
        value = loss(case, reduction=reduction)
        assert torch.equal(value, torch.zeros_like(value))
        assert value.requires_grad
        assert value.grad_fn is not None
        for gradient in torch.autograd.grad(value.sum(), leaves):
            assert torch.equal(gradient, torch.zeros_like(gradient))


def test_no_loss_is_forgotten():
    covered = {row.name for row in ROWS.values()} | {row.module for row in ROWS.values()}
    assert covered | OTHERS == set(losses.__all__)
    assert not covered & OTHERS
    assert all(hasattr(losses, name) for name in losses.__all__)


@each(ROWS)
def test_a_function_has_the_options_of_its_module(loss):
    function, module = getattr(losses, loss.name), getattr(losses, loss.module)
    called = set(signature(function).parameters)
    made = set(signature(module).parameters)
    if loss.name == "backward_compatible":
        # The function takes the tensors of the layers.
        made = made - {"head", "width"} | {"weight", "bias", "projection"}
    if loss.name == "regression_alleviating":
        made -= {"width", "old_width"}
    assert made <= called


# --- against the papers ------------------------------------------------------


def agrees(loss: Loss, case: Case, value: Tensor, gradients: list[Tensor], **options: Any) -> bool:
    expected, wanted = loss.value_and_gradients(case, loss.plainly, **options)
    pairs = zip(gradients, wanted, strict=True)
    return close(value, expected) and all(close(got, want) for got, want in pairs)


def choices_of(loss: Loss, case: Case) -> list[plain.Choices]:
    assert loss.choices is not None
    return loss.choices(**case.tensors, **case.options)


@each(ROWS)
@settings(max_examples=tries(40))
@given(random=randoms)
def test_every_loss_is_its_transcription(loss, random):
    case = loss.draw(random)
    value, gradients = loss.value_and_gradients(case)
    options: dict[str, Any] = {}
    if loss.choices is not None:
        found = choices_of(loss, case)
        # What ties leave open is for the next test.
        assume(all(len(choices) == 1 for choices in found))
        options["chosen"] = [choices[0] for choices in found]
    expected, wanted = loss.value_and_gradients(case, loss.plainly, **options)
    assert_close(value, expected)
    for got, want in zip(gradients, wanted, strict=True):
        assert_close(got, want)


@each({name: row for name, row in ROWS.items() if row.choices})
@settings(max_examples=tries(40))
@given(random=randoms)
def test_among_tied_classes_any_valid_choice_will_do(loss, random):
    case = loss.draw(random, kind="grid", reduction="none")
    found = choices_of(loss, case)
    value, gradients = loss.value_and_gradients(case)
    for i, choices in enumerate(found):
        if not choices:
            continue
        # One and the same choice must give the value and the gradient of the sample.
        sample = case.samples(loss, slice(i, i + 1))
        own = [gradient[i : i + 1] for gradient in gradients]
        assert any(
            agrees(loss, sample, value[i : i + 1], own, chosen=[choice]) for choice in choices
        ), (i, choices)


@settings(max_examples=tries(40))
@given(random=randoms, k=st.integers(1, 12), c=st.integers(1, 12))
def test_the_first_of_the_tied_classes_are_one_valid_choice(random, k, c):
    row = list(scores(random, c, kind="grid").unbind())
    chosen = plain.highest_classes(row, k)
    assert plain.is_valid_choice(row, chosen, k)
    assert sorted(chosen) in [sorted(choice) for choice in plain.valid_choices(row, k)] or (
        not plain.valid_choices(row, k)
    )


def checked(name: str, *, seed: int = 0, **given: Any) -> Any:
    """A case for gradcheck: no ties, and no kink nearby."""
    loss = ROWS[name]
    fixed = {"n": 3, "c": 4, "kind": "fine", "soft": False, "matched": False, **given}
    options = {key: value for key, value in given.items() if key not in ("soft", "matched", "c")}
    label = ", ".join(f"{key}={value}" for key, value in given.items())
    return pytest.param(
        loss, loss.draw(Random(seed), **fixed), id=f"{name} {label}" if options or label else name
    )


GRADCHECKS = [
    checked("naive_congruence"),
    checked("naive_congruence", soft=True),
    checked("naive_congruence", matched=True),
    checked("new_error"),
    checked("new_error", soft=True, matched=True),
    checked("strict_imitation"),
    checked("strict_imitation", soft=True, matched=True),
    *(
        checked("focal_distillation", distance="kl", temperature=t, direction=direction)
        for t in (1.0, 4.0, 100.0)
        for direction in ("forward", "reverse")
    ),
    checked("focal_distillation", distance="logits", filter="negative_flip"),
    checked("focal_distillation", distance="logits", soft=True, matched=True),
    checked("focal_distillation", distance="kl", filter="new_wrong", soft=True, matched=True),
    *(
        checked("knowledge_distillation", temperature=t, direction=direction, matched=matched)
        for t in (1.0, 100.0)
        for direction in ("forward", "reverse")
        for matched in (False, True)
    ),
    *(
        checked("logit_difference_inhibition", k=k, p=p, rank_by=rank_by, margin=margin)
        for k, p, rank_by, margin in (
            (None, 2.0, "student", 0.0),
            (2, 1.0, "student", 0.3),
            (2, 1.5, "reference", 0.0),
            (2, 3.0, "both", 0.3),
            (1, 2.0, "both", 0.0),
        )
    ),
    checked("logit_difference_inhibition", k=2, focus=2.0, filter="all", soft=True, matched=True),
    *(
        checked(name, k=k, c=5)
        for name in ("entropy_regularizer", "uniform_divergence")
        for k in (None, 1, 3)
    ),
    *(checked("uniform_divergence", k=k, floor=0.01, c=5) for k in (None, 3)),
    checked("codistillation, symmetric"),
    checked("codistillation, L1"),
    checked("codistillation, cross-entropy"),
    *(checked("muscle", temperature=t, seed=seed) for t in (1.0, 4.0) for seed in (0, 1, 2)),
    checked("muscle", soft=True, matched=True),
    *(checked("backward_compatible", seed=seed) for seed in (0, 1, 2)),
    checked("backward_compatible", soft=True, matched=True),
    *(checked("regression_alleviating", seed=seed, temperature=0.5) for seed in (0, 1, 2)),
    checked("regression_alleviating", n=5, c=3, temperature=0.05),
]


@pytest.mark.parametrize("by", ["function", "module"])
@pytest.mark.parametrize(("loss", "case"), GRADCHECKS)
def test_gradients_are_the_slopes(loss, case, by):
    names = loss.learners(case)
    if by == "module":
        # A module owns its projection.
        names = [name for name in names if name != "projection"]
    leaves = [case.tensors[name].clone().requires_grad_() for name in names]
    call = loss if by == "function" else loss.by_module
    for reduction in ("none", "mean"):

        def of_leaves(*tensors: Tensor, reduction: str = reduction) -> Tensor:
            moved = case.with_tensors(**dict(zip(names, tensors, strict=True)))
            return call(moved, reduction=reduction)

        assert torch.autograd.gradcheck(of_leaves, leaves)


# --- rules that all keep -----------------------------------------------------


@each(ROWS)
@settings(max_examples=tries(7))
@given(random=randoms)
def test_a_module_is_its_function(loss, random):
    case = loss.draw(random)
    value, gradients = loss.value_and_gradients(case)
    # The gradient of a projection belongs to the module's own.
    learnt = [
        gradient
        for name, gradient in zip(loss.learners(case), gradients, strict=True)
        if name != "projection"
    ]
    moved = loss.learning(case)
    by_module = loss.by_module(moved)
    leaves = [moved.tensors[name] for name in loss.learners(case) if name != "projection"]
    found = torch.autograd.grad(by_module.sum(), leaves)
    # The same operations, so the same bits; but a projection may be multiplied in another order.
    tolerance = 1e-12 if "projection" in case.tensors else 0.0
    assert_close(by_module.detach(), value, tolerance)
    for got, wanted in zip(found, learnt, strict=True):
        assert_close(got, wanted, tolerance)


@each(ROWS)
def test_a_modules_text_names_the_loss(loss):
    case = loss.draw(Random(1))
    text = repr(loss.make(getattr(losses, loss.module), case))
    assert text.startswith(loss.module)


@each(ROWS)
@settings(max_examples=tries(7))
@given(random=randoms)
def test_reductions_agree(loss, random):
    case = loss.draw(random)
    each_one = loss(case, reduction="none")
    counted = len(each_one)
    target = case.tensors.get("target")
    if target is not None and not target.is_floating_point():
        counted = int((target != IGNORED).sum())
    assert each_one.shape == (len(case.tensors[loss.learns[0]]),)
    assert_close(loss(case, reduction="sum"), each_one.sum())
    # Divided by the samples that count, never by their weights.
    assert_close(loss(case, reduction="mean"), each_one.sum() / max(counted, 1))
    without = Case(case.tensors, {k: v for k, v in case.options.items() if k != "reduction"})
    assert torch.equal(loss(without), loss(case, reduction="mean"))


def replaced(loss: Loss, case: Case, where: Tensor, by: float | None, random: Random) -> Case:
    """Other numbers in some of the samples."""
    tensors = {}
    for name in loss.per_sample:
        tensor = case.tensors.get(name)
        if tensor is not None and tensor.is_floating_point():
            other = features(random, *tensor.shape) * 5 if by is None else tensor * 0 + by
            tensors[name] = torch.where(where[:, None], other, tensor)
    return case.with_tensors(**tensors)


@each(TARGETED)
@settings(max_examples=tries(7))
@given(random=randoms, by=st.sampled_from([None, 1e4, 1e30]))
def test_an_ignored_sample_counts_for_nothing(loss, random, by):
    case = loss.draw(random, n=random.randint(2, 6), soft=False)
    assume("target" in case.tensors)
    target = case.tensors["target"].clone()
    target[random.randrange(len(target))] = IGNORED
    case = case.with_tensors(target=target)
    ignored = target == IGNORED
    other = replaced(loss, case, ignored, by, random)
    assert_same_results(loss, case, other)
    value, gradients = loss.value_and_gradients(other, reduction="none")
    assert torch.equal(value[ignored], torch.zeros_like(value[ignored]))
    own = gradients[0][ignored]
    assert torch.equal(own, torch.zeros_like(own))
    # Nor are they there at all: the rest alone gives the same.
    rest = case.samples(loss, ~ignored)
    if len(rest.tensors["target"]):
        assert_close(loss(case, reduction="mean"), loss(rest, reduction="mean"))
    assert_close(loss(case, reduction="none")[~ignored], loss(rest, reduction="none"))


@each(TARGETED)
@settings(max_examples=tries(5))
@given(random=randoms, other=st.sampled_from([-1, 255, 10_000]))
def test_the_ignored_number_is_free_to_choose(loss, random, other):
    case = loss.draw(random, soft=False)
    assume("target" in case.tensors)
    target = case.tensors["target"]
    renamed = torch.where(target == IGNORED, other, target)
    moved = case.with_tensors(target=renamed).with_options(ignore_index=other)
    assert_same_results(loss, case, moved)


@each(TARGETED)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_a_batch_of_ignored_samples_is_nothing(loss, random):
    case = loss.draw(random, soft=False)
    target = torch.full((len(case.tensors[loss.learns[0]]),), IGNORED)
    assert_nothing(loss, case.with_tensors(target=target))


@each(ROWS)
def test_an_empty_batch_is_nothing(loss):
    for soft in (False, True) if loss.soft else (False,):
        case = loss.draw(Random(3), c=4, soft=soft)
        assert_nothing(loss, case.samples(loss, slice(0, 0)))


# Losses that depend only on whether old is right, or on the score of the target from old's head.
# They ignore a sample of a class that old lacks; other losses treat it as one that old gets wrong.
SILENT = ("naive_congruence", "new_error", "strict_imitation", "backward_compatible")


@each({name: TARGETED[name] for name in SILENT})
@pytest.mark.parametrize("soft", [False, True])
@settings(max_examples=tries(5))
@given(random=randoms)
def test_a_batch_of_classes_that_old_lacks_is_nothing(loss, soft, random):
    case = loss.draw(random, c=random.randint(2, 8), matched=True, soft=False)
    match = case.options["classes"]
    unknown = [label for label in range(len(match.of_new)) if not match.known(label)]
    assume(unknown)
    n = len(case.tensors[loss.learns[0]])
    target = torch.tensor([random.choice(unknown) for _ in range(n)])
    if soft:
        target = nn.functional.one_hot(target, len(match.of_new)).double()
    assert_nothing(loss, case.with_tensors(target=target))


@pytest.mark.parametrize("distance", ["logits", "kl"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_batch_of_new_classes_is_the_base_times_the_distance(distance, reduction):
    """PCT, equation 7: every sample has the base, and old is not right on a class that it lacks."""
    drawn = torch.Generator().manual_seed(0)
    new = torch.randn(6, 5, generator=drawn, dtype=torch.float64)
    old = torch.randn(6, 3, generator=drawn, dtype=torch.float64)
    target = torch.tensor([3, 4, 4, 3, 3, 4])
    options = {"distance": distance, "temperature": 2.0, "reduction": reduction}
    value = losses.focal_distillation(
        new=new,
        old=old,
        target=target,
        base=0.5,
        classes=losses.SharedClasses.by_index([2, 0, 1, -1, -1], old_count=3),
        **options,
    )
    theirs = old[:, [2, 0, 1]]
    alike = losses.focal_distillation(
        new=new[:, :3], old=theirs, target=theirs.argmax(-1), base=1.0, focus=0.0, **options
    )
    assert float(alike) > 0
    torch.testing.assert_close(value, 0.5 * alike)


@each({name: TARGETED[name] for name in SILENT})
@settings(max_examples=tries(5))
@given(random=randoms)
def test_a_class_that_old_lacks_is_counted_in_the_mean(loss, random):
    case = loss.draw(random, c=random.randint(2, 8), matched=True, soft=False, ignored=False)
    match = case.options["classes"]
    unknown = [label for label in range(len(match.of_new)) if not match.known(label)]
    assume(unknown)
    assume("target" in case.tensors)
    target = case.tensors["target"].clone()
    target[0] = unknown[0]
    case = case.with_tensors(target=target)
    each_one = loss(case, reduction="none")
    assert float(each_one[0]) == 0.0
    assert_close(loss(case, reduction="mean"), each_one.sum() / len(target))


@each(MATCHING)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_matching_every_class_in_order_is_no_matching(loss, random):
    case = loss.draw(random, matched=False)
    name = next((name for name in (*loss.fixed, "weight") if name in case.tensors), "")
    # The head's classes are its rows.
    tensor = case.tensors[name]
    count = len(tensor) if name == "weight" else tensor.shape[-1]
    assert_same_results(loss, case, case.with_options(classes=plain.everything(count)))


@each(MATCHING)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_the_order_of_olds_classes_does_not_matter(loss, random):
    case = loss.draw(random, matched=True, kind="fine")
    match = case.options["classes"]
    order = list(range(match.old_count))
    random.shuffle(order)
    # Class j of old moves to place order[j].
    of_new = tuple(-1 if old == -1 else order[old] for old in match.of_new)
    back = torch.tensor([order.index(place) for place in range(match.old_count)])
    moved = case.with_options(classes=Match(of_new, match.old_count))
    if "weight" in case.tensors:
        changed = {"weight": case.tensors["weight"][back]}
        if "bias" in case.tensors:
            changed["bias"] = case.tensors["bias"][back]
    else:
        changed = {loss.fixed[0]: case.tensors[loss.fixed[0]][:, back]}
    assert_same_results(loss, case, moved.with_tensors(**changed), tolerance=1e-10)


@settings(max_examples=tries(20))
@given(random=randoms)
def test_classes_are_matched_by_name_as_by_index(random):
    loss = ROWS["focal_distillation"]
    case = loss.draw(random, matched=True).without("preset")
    match = case.options["classes"]
    old = [f"class {label}" for label in range(match.old_count)]
    new = [f"fresh {label}" if o == -1 else old[o] for label, o in enumerate(match.of_new)]
    classes = losses.SharedClasses.by_name(old=old, new=new)
    options = {**case.options, "classes": classes}
    assert torch.equal(losses.focal_distillation(**case.tensors, **options), loss(case))
    assert classes == shared_classes(match)


def one_hot(case: Case, count: int) -> Tensor:
    return nn.functional.one_hot(case.tensors["target"], count).double()


def class_count(loss: Loss, case: Case) -> int:
    if "classes" in case.options:
        return len(case.options["classes"].of_new)
    if "weight" in case.tensors:
        return len(case.tensors["weight"])
    return case.tensors["new"].shape[-1]


@each(SOFTENED)
@settings(max_examples=tries(7))
@given(random=randoms)
def test_a_one_hot_target_is_its_class(loss, random):
    case = loss.draw(random, soft=False, ignored=False)
    assume("target" in case.tensors)
    softened = case.with_tensors(target=one_hot(case, class_count(loss, case)))
    assert_same_results(loss, case, softened)


@each(SOFTENED)
@settings(max_examples=tries(7))
@given(random=randoms)
def test_a_soft_target_is_a_mixture(loss, random):
    case = loss.draw(random, c=random.randint(1, 6), soft=True, kind="fine")
    assume("target" in case.tensors)
    target = case.tensors["target"]
    value, gradients = loss.value_and_gradients(case, reduction="none")
    expected = torch.zeros_like(value)
    wanted = [torch.zeros_like(gradient) for gradient in gradients[:1]]
    for label in range(target.shape[-1]):
        hard = case.with_tensors(target=torch.full((len(target),), label))
        one, slopes = loss.value_and_gradients(hard, reduction="none")
        expected += target[:, label] * one
        wanted[0] += target[:, label, None] * slopes[0]
    assert_close(value, expected)
    assert_close(gradients[0], wanted[0])


@each(OF_LOGITS)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_leading_dimensions_are_samples(loss, random):
    case = loss.draw(random, n=6)
    folded = case.with_tensors(
        **{name: tensor.reshape(2, 3, *tensor.shape[1:]) for name, tensor in case.tensors.items()}
    )
    value, gradients = loss.value_and_gradients(folded, reduction="none")
    expected, wanted = loss.value_and_gradients(case, reduction="none")
    assert value.shape == (2, 3)
    assert_close(value.flatten(), expected, 1e-12)
    for got, want in zip(gradients, wanted, strict=True):
        assert_close(got.reshape(want.shape), want, 1e-12)
    for reduction in ("mean", "sum"):
        assert_close(loss(folded, reduction=reduction), loss(case, reduction=reduction), 1e-12)


@each(OF_LOGITS)
def test_one_sample_needs_no_batch(loss):
    case = loss.draw(Random(5), n=1, c=4)
    alone = case.with_tensors(**{name: tensor[0] for name, tensor in case.tensors.items()})
    for reduction in ("mean", "sum"):
        assert_close(loss(alone, reduction=reduction), loss(case, reduction=reduction), 1e-12)
    assert loss(alone, reduction="none").shape == ()


@each(ROWS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@settings(max_examples=tries(5))
@given(random=randoms)
def test_half_precision_is_computed_in_single(loss, dtype, random):
    case = loss.draw(random, c=random.randint(1, 12), kind="fine", projected=False).to(dtype)
    value, gradients = loss.value_and_gradients(case)
    expected, wanted = loss.value_and_gradients(case.to(torch.float32))
    assert value.dtype == torch.float32
    # The same numbers went in, so the same come out.
    assert_close(value, expected, 1e-6)
    for got, want in zip(gradients, wanted, strict=True):
        assert got.dtype == dtype
        assert torch.isfinite(got).all()
        assert_close(got, want.to(dtype), 2e-2 if dtype == torch.bfloat16 else 2e-3)


@each(ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_result_has_the_precision_of_the_inputs(loss, dtype):
    case = loss.draw(Random(7), c=5, kind="fine").to(dtype)
    value, gradients = loss.value_and_gradients(case)
    assert value.dtype == dtype
    assert all(gradient.dtype == dtype for gradient in gradients)


@each(ROWS)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_single_precision_is_close_to_double(loss, random):
    # Numbers that both precisions hold, so that both rank and predict alike.
    case = loss.draw(random, c=random.randint(1, 20), kind="fine").to(torch.float32)
    value, gradients = loss.value_and_gradients(case)
    expected, wanted = loss.value_and_gradients(case.to(torch.float64))
    # A temperature of 100 magnifies rounding ten thousandfold.
    tolerance = 1e-3 if case.options.get("temperature") == 100.0 else 1e-4
    largest = float(expected.abs().max()) + 1.0
    assert_close(value.double() / largest, expected / largest, tolerance)
    for got, want in zip(gradients, wanted, strict=True):
        largest = float(want.abs().max()) + 1.0
        assert_close(got.double() / largest, want / largest, 1e-4)


@each({name: row for name, row in ROWS.items() if row.fixed})
@settings(max_examples=tries(5))
@given(random=randoms)
def test_the_other_model_may_be_stored_in_half_precision(loss, random):
    case = loss.draw(random, c=random.randint(1, 12), kind="fine", projected=False)
    case = case.to(torch.float32)
    names = [name for name in loss.fixed if name in case.tensors]
    stored = case.with_tensors(**{name: case.tensors[name].half() for name in names})
    same = case.with_tensors(**{name: case.tensors[name].half().float() for name in names})
    value, gradients = loss.value_and_gradients(stored)
    assert value.dtype == gradients[0].dtype == torch.float32
    assert_same_results(loss, stored, same)


@each(ROWS)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_autocast_changes_nothing(loss, random):
    case = loss.draw(random, c=random.randint(1, 12), kind="fine", projected=False)
    case = case.to(torch.float32)
    expected, wanted = loss.value_and_gradients(case)
    learning = loss.learning(case)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(learning)
    (got,) = torch.autograd.grad(value.sum(), [learning.tensors[loss.learns[0]]])
    assert_close(value.detach(), expected, 1e-6)
    assert_close(got, wanted[0], 1e-6)


@each(ROWS)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_nothing_is_read_back_from_the_device(loss, random):
    # Fake tensors have shapes and no numbers: to read one raises an error.
    case = loss.draw(random)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(tensor) for name, tensor in case.tensors.items()}
        value = loss(Case(fake, case.options))
    assert value.shape == loss(case).shape


@each(ROWS)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_inputs_are_left_alone_and_results_repeat(loss, random):
    case = loss.draw(random)
    kept = {name: tensor.clone() for name, tensor in case.tensors.items()}
    versions = {name: tensor._version for name, tensor in case.tensors.items()}
    first = loss.value_and_gradients(case)
    loss(case)
    for name, tensor in case.tensors.items():
        assert torch.equal(tensor, kept[name]), name
        assert tensor._version == versions[name], name
    second = loss.value_and_gradients(case)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@each({name: row for name, row in ROWS.items() if row.fixed or row.name == "backward_compatible"})
@settings(max_examples=tries(5))
@given(random=randoms)
def test_the_other_model_does_not_learn(loss, random):
    case = loss.learning(loss.draw(random))
    others = {
        name: case.tensors[name].clone().requires_grad_()
        for name in (*loss.fixed, "weight", "bias")
        if name in case.tensors
    }
    case = case.with_tensors(**others)
    value = loss(case)
    value.sum().backward()
    for name, tensor in others.items():
        assert tensor.grad is None, name
    for name in loss.learners(case):
        assert case.tensors[name].grad is not None
