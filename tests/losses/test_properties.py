"""What the papers prove or say of the losses, and what implementations of them get wrong."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from flipguard import losses
from tests.effort import tries
from tests.losses import transcription as plain
from tests.losses.table import FILTERS, ROWS, Case, Loss, features, randoms, scores
from tests.losses.test_transcription import assert_close, each

FOCUSED = {
    "focal distillation, logits": (ROWS["focal_distillation"], {"distance": "logits"}),
    "focal distillation, KL": (ROWS["focal_distillation"], {"distance": "kl"}),
    "logit difference inhibition": (ROWS["logit_difference_inhibition"], {}),
}
focused = pytest.mark.parametrize(("loss", "given_"), FOCUSED.values(), ids=FOCUSED.keys())


def flags(old: Tensor, new: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Who is right, sample by sample."""
    result: dict[str, list[bool]] = {name: [] for name in FILTERS}
    for i, label in enumerate(target.tolist()):
        old_right = plain.prediction(list(old[i].unbind())) == label
        new_wrong = plain.prediction(list(new[i].unbind())) != label
        for name, values in result.items():
            values.append(plain.holds(name, old_right, new_wrong))
    return {name: torch.tensor(values) for name, values in result.items()}


def reference_of(loss: Loss, case: Case) -> Tensor:
    return case.tensors[loss.fixed[0]]


# --- weights of samples ------------------------------------------------------


@focused
@pytest.mark.parametrize("filter", FILTERS)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_without_a_base_only_the_filtered_samples_pull(loss, given_, filter, random):
    case = loss.draw(
        random, soft=False, ignored=False, matched=False, base=0.0, focus=3.0, filter=filter
    ).with_options(**given_)
    holds = flags(reference_of(loss, case), case.tensors["new"], case.tensors["target"])[filter]
    value, gradients = loss.value_and_gradients(case, reduction="none")
    assert torch.equal(value[~holds], torch.zeros_like(value[~holds]))
    assert torch.equal(gradients[0][~holds], torch.zeros_like(gradients[0][~holds]))
    for reduction in ("mean", "sum"):
        _, gradients = loss.value_and_gradients(case, reduction=reduction)
        assert torch.equal(gradients[0][~holds], torch.zeros_like(gradients[0][~holds]))


@focused
@pytest.mark.parametrize("filter", FILTERS)
@settings(max_examples=tries(5))
@given(random=randoms, focus=st.sampled_from([0.5, 1.0, 5.0]))
def test_focus_adds_its_share_to_the_filtered_samples(loss, given_, filter, random, focus):
    case = loss.draw(
        random, soft=False, ignored=False, matched=False, kind="fine", filter=filter, focus=focus
    ).with_options(**given_, reduction="none")
    holds = flags(reference_of(loss, case), case.tensors["new"], case.tensors["target"])[filter]
    bare = loss(case, base=1.0, focus=0.0)
    assert_close(loss(case, base=1.0), bare + focus * holds * bare, 1e-12)
    assert_close(loss(case, base=0.25), (0.25 + focus * holds) * bare, 1e-12)
    # Divided by the number of samples, not by the sum of their weights.
    assert_close(loss(case, base=1.0, reduction="mean"), loss(case, base=1.0).mean(), 1e-12)


@focused
def test_focus_changes_the_loss(loss, given_):
    new = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
    old = torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([0, 0])
    case = Case({"new": new, loss.fixed[0]: old, "target": target}, given_)
    first, second = loss(case, base=1.0, focus=0.0, reduction="none").tolist()
    assert first > 0.0
    # Old is right about the first sample only.
    assert float(loss(case, base=1.0, focus=5.0)) == pytest.approx((6 * first + second) / 2)


@each({name: row for name, row in ROWS.items() if row.alone})
@settings(max_examples=tries(5))
@given(random=randoms)
def test_a_batch_is_the_mean_of_its_samples(loss, random):
    # Weights of shape [N, 1] would meet losses of shape [N] here.
    case = loss.draw(random, n=random.randint(2, 6), ignored=False)
    count = len(case.tensors[loss.learns[0]])
    singles = [loss(case.samples(loss, slice(i, i + 1)), reduction="sum") for i in range(count)]
    assert_close(loss(case, reduction="none"), torch.stack(singles), 1e-12)
    assert_close(loss(case, reduction="mean"), torch.stack(singles).mean(), 1e-12)


@each({name: row for name, row in ROWS.items() if row.alone})
@settings(max_examples=tries(5))
@given(random=randoms)
def test_the_order_of_the_samples_does_not_matter(loss, random):
    case = loss.draw(random, n=5)
    order = list(range(5))
    random.shuffle(order)
    moved = case.samples(loss, torch.tensor(order))
    value, gradients = loss.value_and_gradients(case, reduction="none")
    shuffled, shuffled_gradients = loss.value_and_gradients(moved, reduction="none")
    assert_close(shuffled, value[order], 1e-12)
    assert_close(shuffled_gradients[0], gradients[0][order], 1e-12)


# --- the highest classes -----------------------------------------------------


@each({name: row for name, row in ROWS.items() if row.choices})
@settings(max_examples=tries(12))
@given(random=randoms, more=st.integers(0, 5))
def test_as_many_classes_as_there_are_is_every_class(loss, random, more):
    case = loss.draw(random)
    count = case.tensors["new"].shape[-1]
    whole = loss.value_and_gradients(case, k=None)
    capped = loss.value_and_gradients(case, k=count + more)
    assert_close(capped[0], whole[0], 1e-12)
    assert_close(capped[1][0], whole[1][0], 1e-12)


@each({name: row for name, row in ROWS.items() if row.choices})
def test_fewer_classes_give_another_loss(loss):
    random = Random(2)
    new, reference = scores(random, 4, 6, kind="fine"), scores(random, 4, 6, kind="fine")
    case = Case({"new": new, **({loss.fixed[0]: reference} if loss.fixed else {})})
    whole = loss(case, k=None, reduction="none")
    for k in (1, 3, 5):
        assert not torch.isclose(loss(case, k=k, reduction="none"), whole).any()


@pytest.mark.parametrize("rank_by", ["student", "reference", "both"])
@settings(max_examples=tries(12))
@given(random=randoms, k=st.integers(1, 5))
def test_the_other_classes_have_no_gradient(rank_by, random, k):
    # It is the classes that are cut, not the batch: every sample keeps k of them, or their union.
    new, reference = scores(random, 6, 8, kind="fine"), scores(random, 6, 8, kind="fine")
    loss = ROWS["logit_difference_inhibition"]
    case = Case({"new": new, "reference": reference}, {"k": k, "rank_by": rank_by})
    _, gradients = loss.value_and_gradients(case)
    for i in range(6):
        mine = set(plain.highest_classes(list(new[i].unbind()), k))
        theirs = set(plain.highest_classes(list(reference[i].unbind()), k))
        kept = {"student": mine, "reference": theirs, "both": mine | theirs}[rank_by]
        assert {c for c in range(8) if float(gradients[0][i, c]) != 0.0} == kept


def test_a_mean_over_both_rankings_divides_by_their_union():
    new = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    reference = torch.tensor([[1.0, 2.5, 3.0, 0.0]], dtype=torch.float64)
    value = losses.logit_difference_inhibition(new=new, reference=reference, k=2, rank_by="both")
    assert float(value) == pytest.approx((2.0**2 + 0.5**2 + 2.0**2) / 3)


def test_the_papers_sums_over_classes():
    new = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    other = torch.tensor([[1.0, 2.5, 3.0, 0.0]], dtype=torch.float64)

    def inhibited(**options: Any) -> float:
        return float(losses.LogitDifferenceInhibition(**options)(new=new, reference=other))

    # ELODI eq. 8 sums over the K highest classes of the student, and has no one half.
    assert inhibited(k=2, preset="paper") == pytest.approx(4.25)
    assert inhibited(k=2, preset="paper", class_reduction="mean") == pytest.approx(4.25 / 2)
    assert inhibited(k=2) == pytest.approx(4.25 / 2)

    def focal(**options: Any) -> float:
        # Old is right, so that the weight is 1 + 5.
        term = losses.FocalDistillation(**options)
        return float(term(new=new, old=other, target=torch.tensor([2])))

    # PCT eq. 9 is half the squared norm.
    assert focal(preset="paper") == pytest.approx(6 * 8.25 / 2)
    assert focal(preset="paper", class_reduction="mean") == pytest.approx(6 * 8.25 / 2 / 4)
    assert focal() == pytest.approx(6 * 8.25 / 2 / 4)
    # PCT eq. 8 writes new first, without a factor.
    kl: dict[str, Any] = {"distance": "kl", "temperature": 2.0}
    rows = list(new[0].unbind()), list(other[0].unbind())
    printed, usual = plain.kl(*rows, 2.0), plain.kl(*rows[::-1], 2.0)
    assert focal(**kl, preset="paper") == pytest.approx(6 * float(printed))
    assert focal(**kl) == pytest.approx(6 * 4 * float(usual))
    assert focal(**kl, preset="paper", direction="forward", t_squared=True) == focal(**kl)


@pytest.mark.parametrize("p", [1.0, 1.25, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_equal_logits_neither_cost_nor_pull(p, margin):
    new = scores(Random(0), 3, 5, kind="grid").requires_grad_()
    for k in (None, 2):
        value = losses.logit_difference_inhibition(
            new=new, reference=new.detach(), p=p, margin=margin, k=k
        )
        assert float(value.detach()) == 0.0
        (gradient,) = torch.autograd.grad(value, new)
        assert torch.equal(gradient, torch.zeros_like(gradient))


@settings(max_examples=tries(7))
@given(random=randoms, margin=st.sampled_from([0.25, 1.0, 2.0]))
def test_differences_within_the_margin_are_free(random, margin):
    reference = scores(random, 4, 6, kind="fine")
    new = reference + margin * torch.tanh(scores(random, 4, 6, kind="fine"))
    value = losses.logit_difference_inhibition(new=new, reference=reference, margin=margin, k=None)
    assert float(value) <= 1e-20
    outside = losses.logit_difference_inhibition(
        new=reference + margin + 0.5, reference=reference, margin=margin, k=None
    )
    assert float(outside) == pytest.approx(0.25)


# --- one loss in another -----------------------------------------------------


def arguments(loss: Loss, random: Random) -> Case:
    """A classifier's batch, for a loss of logits or of features."""
    return loss.draw(random, n=5, c=4, soft=False, ignored=False, matched=False, reduction="mean")


@each(ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=tries(5))
@given(random=randoms)
def test_at_strength_zero_training_is_what_it_was(loss, dtype, random):
    case = loss.learning(arguments(loss, random).to(dtype))
    leaves = [case.tensors[name] for name in loss.learners(case)]
    target = torch.tensor([random.randrange(4) for _ in range(5)])
    if leaves[0].shape[-1] < 4:
        target.zero_()

    def task() -> Tensor:
        return functional.cross_entropy(leaves[0], target)

    with_pull = task() + 0.0 * loss(case)
    assert torch.equal(with_pull, task())
    wanted = torch.autograd.grad(task(), leaves, allow_unused=True, materialize_grads=True)
    found = torch.autograd.grad(with_pull, leaves)
    for got, want in zip(found, wanted, strict=True):
        assert torch.equal(got, want)


@settings(max_examples=tries(20))
@given(
    random=randoms,
    temperature=st.sampled_from([0.5, 1.0, 20.0, 100.0]),
    direction=st.sampled_from(["forward", "reverse"]),
)
def test_focal_distillation_without_focus_is_distillation(random, temperature, direction):
    # PCT section 4.2: "When α = 1 and β = 0, focal distillation reduces to ordinary distillation."
    focal, ordinary = ROWS["focal_distillation"], ROWS["knowledge_distillation"]
    case = focal.draw(random, soft=False, ignored=False, matched=False)
    options = {"temperature": temperature, "direction": direction, "reduction": "none"}
    first = focal.value_and_gradients(
        Case(case.tensors, {**options, "distance": "kl", "base": 1.0, "focus": 0.0})
    )
    tensors = {"new": case.tensors["new"], "reference": case.tensors["old"]}
    second = ordinary.value_and_gradients(Case(tensors, options))
    assert_close(first[0], second[0], 1e-12)
    assert_close(first[1][0], second[1][0], 1e-12)


@settings(max_examples=tries(20))
@given(random=randoms)
def test_logit_matching_is_half_the_inhibition_of_every_class(random):
    # PCT eq. 9 and ELODI eq. 7, but for the half and the weights.
    focal, inhibition = ROWS["focal_distillation"], ROWS["logit_difference_inhibition"]
    case = focal.draw(random, soft=False, ignored=False, matched=False)
    options = {"class_reduction": random.choice(("mean", "sum")), "reduction": "none"}
    first = focal(Case(case.tensors, {**options, "base": 1.0, "focus": 0.0}))
    tensors = {"new": case.tensors["new"], "reference": case.tensors["old"]}
    second = inhibition(Case(tensors, {**options, "k": None}))
    assert_close(first, second / 2, 1e-12)


@settings(max_examples=tries(20))
@given(random=randoms)
def test_the_naive_loss_is_cross_entropy_where_old_is_right(random):
    case = ROWS["naive_congruence"].draw(random, soft=False, ignored=False, matched=False)
    new, old, target = (case.tensors[name] for name in ("new", "old", "target"))
    right = flags(old, new, target)["old_right"]
    expected = right * functional.cross_entropy(new, target, reduction="none")
    for loss in (losses.naive_congruence, losses.new_error):
        assert_close(loss(**case.tensors, reduction="none"), expected, 1e-12)


def test_strict_imitation_is_not_the_new_error():
    # Towards old's probabilities, not towards the label.
    new = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
    old = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
    arguments = {"new": new, "old": old, "target": torch.tensor([0])}
    expected = -(old.softmax(-1) * new.log_softmax(-1)).sum()
    assert float(losses.strict_imitation(**arguments)) == pytest.approx(float(expected))
    assert float(losses.new_error(**arguments)) == pytest.approx(-float(new.log_softmax(-1)[0, 0]))
    assert not torch.isclose(losses.strict_imitation(**arguments), losses.new_error(**arguments))


@settings(max_examples=tries(15))
@given(random=randoms)
def test_where_old_is_certain_strict_imitation_is_the_new_error(random):
    new = scores(random, 4, 5, kind="fine")
    target = torch.tensor([random.randrange(5) for _ in range(4)])
    old = functional.one_hot(target, 5).double() * 1e3
    arguments = {"new": new, "old": old, "target": target, "reduction": "none"}
    assert_close(losses.strict_imitation(**arguments), losses.new_error(**arguments), 1e-12)


@settings(max_examples=tries(15))
@given(random=randoms)
def test_muscle_is_distillation_from_old_or_from_the_control(random):
    case = ROWS["muscle"].draw(random, soft=False, ignored=False, matched=False)
    tensors = {**case.tensors, "control": scores(random, *case.tensors["new"].shape)}
    options = {"temperature": case.options["temperature"], "reduction": "none"}
    wrong = flags(tensors["old"], tensors["new"], tensors["target"])["new_wrong"]
    towards = {
        name: losses.knowledge_distillation(
            new=tensors["new"], reference=tensors[name], direction="forward", **options
        )
        for name in ("old", "control")
    }
    expected = torch.where(wrong, towards["old"], towards["control"])
    assert_close(losses.muscle(**tensors, **options), expected, 1e-10)
    del tensors["control"]
    assert_close(losses.muscle(**tensors, **options), wrong * towards["old"], 1e-10)


# --- high temperatures -------------------------------------------------------


def centred(new: Tensor, old: Tensor) -> Tensor:
    difference = new - old
    return (difference - difference.mean(-1, keepdim=True)).square().mean(-1) / 2


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("temperature", [1e3, 1e4])
@settings(max_examples=tries(7))
@given(random=randoms)
def test_a_high_temperature_is_centred_logit_matching(direction, temperature, random):
    # PCT section 4.2, after Hinton et al.: the divergence approaches the distance of the logits.
    new = scores(random, 3, random.randint(2, 20), kind="fine").requires_grad_()
    old = scores(random, *new.shape, kind="fine")
    options: dict[str, Any] = {"temperature": temperature, "direction": direction}
    each_one = losses.knowledge_distillation(new=new, reference=old, **options, reduction="none")
    limit = centred(new, old)
    # The next term of the series is of third order in the logits, over the temperature.
    bound = 4 * (float(new.detach().abs().max()) + float(old.abs().max())) ** 3 / temperature
    assert float((each_one - limit).detach().abs().max()) <= bound
    (got,) = torch.autograd.grad(each_one.sum(), new)
    (want,) = torch.autograd.grad(limit.sum(), new)
    assert float((got - want).abs().max()) <= bound
    if temperature == 1e4:
        assert_close(each_one, limit, 2e-2)
        assert_close(got, want, 2e-2)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_single_precision_survives_the_papers_temperature(direction, classes):
    loss = ROWS["focal_distillation"]
    random = Random(classes)
    tensors = {
        "new": scores(random, 8, classes, kind="fine").float(),
        "old": scores(random, 8, classes, kind="fine").float(),
        "target": torch.zeros(8, dtype=torch.int64),
    }
    case = Case(
        tensors,
        {"distance": "kl", "temperature": 100.0, "direction": direction, "reduction": "none"},
    )
    value, gradients = loss.value_and_gradients(case)
    expected, wanted = loss.value_and_gradients(case.to(torch.float64))
    # Errors are relative to the batch, because some samples agree almost perfectly by chance.
    mean = float(expected.mean())
    assert float(value.double().mean()) == pytest.approx(mean, rel=1e-3)
    assert torch.isclose(value.double(), expected, rtol=1e-3, atol=1e-3 * mean).all()
    away = (gradients[0].double() - wanted[0]).abs().max()
    assert float(away) <= 1e-3 * float(wanted[0].abs().max())


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("temperature", [1.0, 100.0])
@settings(max_examples=tries(7))
@given(random=randoms, apart=st.sampled_from([0.0, 1e-6, 1e-3, 1.0]))
def test_a_divergence_is_never_negative(direction, temperature, random, apart):
    new = scores(random, 6, random.randint(1, 50)).float()
    old = (new + apart * scores(random, *new.shape, kind="fine")).float()
    value = losses.knowledge_distillation(
        new=new, reference=old, temperature=temperature, direction=direction, reduction="none"
    )
    assert float(value.min()) >= -1e-6
    symmetric = losses.codistillation(first=new, second=old, reduction="none")
    assert float(symmetric.min()) >= -1e-6
    assert float(losses.uniform_divergence(new=new, reduction="none").min()) >= -1e-6
    assert float(losses.entropy_regularizer(new=new, reduction="none").min()) >= -1e-6


@settings(max_examples=tries(7))
@given(random=randoms, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_a_divergence_of_equal_logits_is_nothing(random, dtype):
    new = scores(random, 4, random.randint(1, 30)).to(dtype)
    small = 1e-6 if dtype == torch.float32 else 1e-12
    for temperature in (1.0, 100.0):
        for direction in ("forward", "reverse"):
            value, gradients = ROWS["knowledge_distillation"].value_and_gradients(
                Case(
                    {"new": new, "reference": new},
                    {"temperature": temperature, "direction": direction},
                )
            )
            assert abs(float(value)) <= small
            assert float(gradients[0].abs().max()) <= small * temperature
    assert abs(float(losses.codistillation(first=new, second=new))) <= small
    flat = torch.full_like(new, 2.5)
    assert abs(float(losses.uniform_divergence(new=flat))) <= small
    count = new.shape[-1]
    assert float(losses.entropy_regularizer(new=flat)) == pytest.approx(math.log(count), abs=1e-5)


# --- shifts and extremes -----------------------------------------------------

# The losses that see probabilities only, and those that see logits.
OF_PROBABILITIES = {
    "naive_congruence": ({}, "new"),
    "strict_imitation": ({}, "new"),
    "focal_distillation": ({"distance": "kl", "temperature": 4.0}, "new"),
    "knowledge_distillation": ({"temperature": 4.0}, "new"),
    "entropy_regularizer": ({"k": 2}, "new"),
    "uniform_divergence": ({"k": 2}, "new"),
    "codistillation, symmetric": ({}, "first"),
    "codistillation, L1": ({}, "first"),
    "codistillation, cross-entropy": ({}, "first"),
    "muscle": ({}, "new"),
}


@pytest.mark.parametrize("name", OF_PROBABILITIES)
@settings(max_examples=tries(5))
@given(random=randoms)
def test_a_constant_added_to_the_logits_changes_no_probability(name, random):
    loss = ROWS[name]
    options, moving = OF_PROBABILITIES[name]
    case = loss.draw(random, c=4, kind="fine", matched=False).with_options(**options)
    shifted = case.with_tensors(**{moving: case.tensors[moving] + 7.5})
    first, second = loss.value_and_gradients(case), loss.value_and_gradients(shifted)
    assert_close(first[0], second[0], 1e-10)
    assert_close(first[1][0], second[1][0], 1e-10)
    # Only differences of logits count, so their slopes cancel.
    sums = first[1][0].sum(-1)
    assert_close(sums, torch.zeros_like(sums), 1e-10)


def test_a_constant_added_to_the_logits_counts_where_logits_are_matched():
    new = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
    focal = losses.focal_distillation(new=new + 1.5, old=new, target=torch.tensor([0]), focus=0.0)
    assert float(focal) == pytest.approx(1.5**2 / 2)
    inhibited = losses.logit_difference_inhibition(new=new + 1.5, reference=new)
    assert float(inhibited) == pytest.approx(1.5**2)


EXTREMES = {
    "focal_distillation": [
        {"distance": distance, "temperature": temperature, "direction": direction}
        for distance, temperature, direction in (
            ("logits", 1.0, "forward"),
            ("kl", 1.0, "forward"),
            ("kl", 1.0, "reverse"),
            ("kl", 100.0, "forward"),
            ("kl", 100.0, "reverse"),
        )
    ],
    "knowledge_distillation": [
        {"temperature": temperature, "direction": direction}
        for temperature in (1.0, 100.0)
        for direction in ("forward", "reverse")
    ],
    "logit_difference_inhibition": [
        {"p": p, "k": k, "margin": margin}
        for p in (1.0, 1.5, 2.0, 3.0)
        for k in (2, None)
        for margin in (0.0, 1.0)
    ],
    "entropy_regularizer": [{"k": None}, {"k": 2}],
    "uniform_divergence": [{"k": k, "floor": floor} for k in (None, 2) for floor in (0.0, 1e-7)],
    "muscle": [{"temperature": 1.0}, {"temperature": 100.0}],
    "regression_alleviating": [{"temperature": 0.05}, {"temperature": 0.01}],
}


@each(ROWS)
@settings(max_examples=tries(7))
@given(random=randoms)
def test_extreme_logits_give_finite_losses_and_slopes(loss, random):
    case = loss.draw(random, n=4, c=5, kind="fine", matched=False, soft=False).to(torch.float32)
    tensors = {
        name: torch.tensor([-1e4, 0.0, 1e4])[
            torch.randint(0, 3, tensor.shape, generator=torch.Generator().manual_seed(i))
        ]
        for i, (name, tensor) in enumerate(case.tensors.items())
        if name in loss.per_sample and name != "target"
    }
    case = case.with_tensors(**tensors).with_options(reduction="none")
    for options in EXTREMES.get(loss.name, [{}]):
        value, gradients = loss.value_and_gradients(case, **options)
        assert torch.isfinite(value).all(), options
        assert all(torch.isfinite(gradient).all() for gradient in gradients), options


def test_a_certain_model_has_no_entropy_and_no_slope():
    new = torch.tensor([[1e4, -1e4, -1e4]], requires_grad=True)
    value = losses.entropy_regularizer(new=new)
    (gradient,) = torch.autograd.grad(value, new)
    assert float(value.detach()) == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


# --- what the churn paper proves ---------------------------------------------


def confidence(chances: Tensor) -> Tensor:
    """Eq. 5: how far the most likely class is ahead of the next."""
    ordered = chances.sort(-1, descending=True).values
    return ordered[..., 0] - ordered[..., 1]


@settings(max_examples=tries(40))
@given(random=randoms)
def test_theorem_3_less_entropy_or_more_divergence_is_more_confidence(random):
    new = scores(random, 2, 2)
    first, second = confidence(new.softmax(-1)).tolist()
    entropy = losses.entropy_regularizer(new=new, reduction="none").tolist()
    divergence = losses.uniform_divergence(new=new, reduction="none").tolist()
    # Rounding may part two that are equal.
    if abs(first - second) < 1e-7:
        assert entropy[0] == pytest.approx(entropy[1], abs=1e-5)
        assert divergence[0] == pytest.approx(divergence[1], abs=1e-5)
        return
    assert (entropy[0] < entropy[1]) == (first > second)
    assert (divergence[0] > divergence[1]) == (first > second)


@settings(max_examples=tries(30))
@given(random=randoms)
def test_for_two_classes_the_divergence_is_what_the_proof_says(random):
    new = scores(random, 5, 2)
    p = new.softmax(-1)
    entropy = losses.entropy_regularizer(new=new, reduction="none")
    divergence = losses.uniform_divergence(new=new, reduction="none")
    # With p and 1 - p: -1/2 log(p (1 - p)) - H(p).
    assert_close(divergence, -(p[:, 0] * p[:, 1]).log() / 2 - entropy, 1e-10)


@pytest.mark.parametrize("k", [None, 2])
def test_a_floor_bounds_the_divergence_from_uniform(k):
    sure = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    floor, values = 1e-7, {}
    for name, by in (("as printed", 0.0), ("floored", floor)):
        values[name] = [
            float(losses.uniform_divergence(new=scale * sure, k=k, floor=by))
            for scale in (5.0, 50.0, 5000.0)
        ]
    assert values["as printed"][2] > 50 * values["as printed"][1] / 2
    # Above log C at the likely class, and (C - 1)/C log(1 / (C floor)) at the others.
    assert values["floored"][2] <= math.log(4) - 0.75 * math.log(4 * floor)
    assert values["floored"][2] == pytest.approx(values["floored"][1], abs=1e-9)
    assert values["floored"][0] == pytest.approx(values["as printed"][0], abs=1e-4)
    leaf = (5000.0 * sure).requires_grad_()
    losses.uniform_divergence(new=leaf, k=k, floor=floor).backward()
    assert float(leaf.grad.abs().max()) < 1e-12


@settings(max_examples=tries(40))
@given(random=randoms, classes=st.integers(2, 8), alike=st.sampled_from([0.1, 0.5, 1.0]))
def test_lemma_2_churn_needs_a_distance_above_the_confidence(random, classes, alike):
    first = scores(random, 20, classes, kind="fine")
    second = (1 - alike) * first + alike * scores(random, 20, classes, kind="fine")
    p, q = first.softmax(-1), second.softmax(-1)
    distance = (p - q).abs().sum(-1)
    churned = p.argmax(-1) != q.argmax(-1)
    least = torch.minimum(confidence(p), confidence(q))
    assert (distance[churned] > least[churned]).all()
    # Eq. 8, and Pinsker, by which eq. 9 bounds it.
    ours = losses.codistillation(first=first, second=second, kind="l1", reduction="none")
    assert_close(ours, distance, 1e-12)
    symmetric = losses.codistillation(first=first, second=second, reduction="none")
    assert (distance.square() <= symmetric + 1e-9).all()


@settings(max_examples=tries(40))
@given(random=randoms, classes=st.integers(2, 5))
def test_lemma_1_churn_is_at_most_the_sum_of_the_errors(random, classes):
    first, second = scores(random, 30, classes), scores(random, 30, classes)
    target = torch.tensor([random.randrange(classes) for _ in range(30)])
    churn = (first.argmax(-1) != second.argmax(-1)).sum()
    errors = (first.argmax(-1) != target).sum() + (second.argmax(-1) != target).sum()
    assert churn <= errors


@settings(max_examples=tries(20))
@given(random=randoms)
def test_codistillation_is_symmetric_and_one_sided(random):
    first, second = scores(random, 4, 5), scores(random, 4, 5)
    for kind in ("skl", "l1"):
        there = losses.codistillation(first=first, second=second, kind=kind)
        back = losses.codistillation(first=second, second=first, kind=kind)
        assert_close(there, back, 1e-12)
    # H(q, p) = KL(q || p) + H(q): eq. 17 and 18 differ by what the first cannot move.
    ce = losses.codistillation(first=first, second=second, kind="ce")
    own = losses.entropy_regularizer(new=second)
    kl = losses.knowledge_distillation(new=first, reference=second, temperature=1.0)
    assert_close(ce, kl + own, 1e-10)


# --- features ----------------------------------------------------------------


def test_without_other_classes_there_is_nothing_to_alleviate():
    random = Random(4)
    case = Case(
        {
            "new_features": features(random, 4, 3),
            "old_features": features(random, 4, 3),
            "target": torch.tensor([2, 2, 2, 2]),
        },
        {"reduction": "none"},
    )
    loss = ROWS["regression_alleviating"]
    value, gradients = loss.value_and_gradients(case)
    assert torch.equal(value, torch.zeros_like(value))
    assert torch.equal(gradients[0], torch.zeros_like(gradients[0]))


def test_closer_to_ones_own_old_feature_is_better():
    old = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    target = torch.tensor([0, 1])
    values = []
    for angle in (0.0, 0.2, 0.5, 1.0):
        # Away from one's own, and not towards the other.
        new = torch.tensor(
            [[math.cos(angle), 0.0, math.sin(angle)], [0.0, 1.0, 0.0]], dtype=torch.float64
        )
        value = losses.regression_alleviating(
            new_features=new, old_features=old, target=target, reduction="none"
        )
        values.append(float(value[0]))
    assert values == sorted(values)
    assert len(set(values)) == 4


@settings(max_examples=tries(7))
@given(random=randoms)
def test_the_length_of_a_feature_does_not_matter(random):
    case = ROWS["regression_alleviating"].draw(random)
    longer = case.with_tensors(
        new_features=case.tensors["new_features"] * 3.0,
        old_features=case.tensors["old_features"] * 0.25,
    )
    loss = ROWS["regression_alleviating"]
    assert_close(loss(case), loss(longer), 1e-10)


def test_the_heads_weights_are_neither_parameters_nor_state():
    head = torch.nn.Linear(3, 4)
    same = losses.BackwardCompatible(head=head, width=3)
    assert list(same.parameters()) == []
    assert same.state_dict() == {}
    wider = losses.BackwardCompatible(head=head, width=5)
    assert [tuple(p.shape) for p in wider.parameters()] == [(3, 5)]
    assert list(wider.state_dict()) == ["projection.weight"]
    before = head.weight.clone()
    value = wider(new_features=torch.randn(2, 5), target=torch.tensor([0, 3]))
    value.backward()
    assert head.weight.grad is None
    assert wider.projection.weight.grad is not None
    assert torch.equal(head.weight, before)
    assert head.weight.requires_grad


# --- after training ----------------------------------------------------------


@st.composite
def votes(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    count = draw(st.integers(1, 5))
    label = st.integers(0, count - 1)
    return count, draw(st.lists(st.tuples(label, label, label), max_size=20))


@settings(max_examples=tries(40))
@given(votes(), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_confusion_is_counted(drawn, smoothing):
    count, rows = drawn
    predicted, target = [row[0] for row in rows], [row[1] for row in rows]
    expected = torch.tensor(
        plain.estimate_confusion(predicted, target, count, smoothing), dtype=torch.float64
    )
    found = losses.estimate_confusion(
        predicted=torch.tensor(predicted, dtype=torch.int64),
        target=torch.tensor(target, dtype=torch.int64),
        classes=count,
        smoothing=smoothing,
    )
    assert found.shape == (count, count)
    assert_close(found.double(), expected, 1e-6)
    assert_close(found.double().sum(-1), torch.ones(count, dtype=torch.float64), 1e-6)


def saying(votes: list[int], count: int) -> Tensor:
    """Logits whose highest class is the vote."""
    return functional.one_hot(torch.tensor(votes), count).double() * 2.0 - 1.0


def confusions(random: Random, count: int) -> Tensor:
    table = torch.rand(
        count, count, generator=torch.Generator().manual_seed(random.getrandbits(30))
    )
    return (table / table.sum(-1, keepdim=True)).double()


@settings(max_examples=tries(40))
@given(
    randoms,
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([1.0, 1.5, 2.5, 10.0]),
)
def test_a_bayesian_update_is_bayes_rule(random, count, with_prior, cost_ratio):
    old_confusion, new_confusion = confusions(random, count), confusions(random, count)
    prior = confusions(random, count)[0] if with_prior else None
    old_votes = [random.randrange(count) for _ in range(6)]
    new_votes = [random.randrange(count) for _ in range(6)]
    old, new = saying(old_votes, count), saying(new_votes, count)
    update = losses.BayesianUpdate(
        old_confusion=old_confusion,
        new_confusion=new_confusion,
        prior=prior,
        cost_ratio=cost_ratio,
    )
    decision = update(old=old, new=new)
    same = losses.bayesian_update(
        old=old,
        new=new,
        old_confusion=old_confusion,
        new_confusion=new_confusion,
        prior=prior,
        cost_ratio=cost_ratio,
    )
    assert torch.equal(decision.label, same.label)
    assert torch.equal(decision.posterior, same.posterior)
    chances = prior.tolist() if prior is not None else [1 / count] * count
    for i, (a, b) in enumerate(zip(old_votes, new_votes, strict=True)):
        expected = plain.posterior(a, b, old_confusion.tolist(), new_confusion.tolist(), chances)
        found = decision.posterior[i].double()
        assert_close(found, torch.tensor(expected, dtype=torch.float64), 1e-6)
        # Where rounding could tip the balance, either is right.
        best = max(expected)
        if abs(best - cost_ratio * expected[a]) > 1e-6:
            assert int(decision.label[i]) == plain.decide(expected, a, cost_ratio)


@settings(max_examples=tries(30))
@given(randoms, st.integers(2, 5))
def test_the_cost_ratio_goes_from_the_best_class_to_olds(random, count):
    old_confusion, new_confusion = confusions(random, count), confusions(random, count)
    old = torch.tensor([random.randrange(count) for _ in range(6)])
    arguments = {
        "old": saying(old.tolist(), count),
        "new": saying([random.randrange(count) for _ in range(6)], count),
        "old_confusion": old_confusion,
        "new_confusion": new_confusion,
    }
    neutral = losses.bayesian_update(**arguments, cost_ratio=1.0)
    assert torch.equal(neutral.label, neutral.posterior.argmax(-1))
    stubborn = losses.bayesian_update(**arguments, cost_ratio=1e30)
    assert torch.equal(stubborn.label, old)
    kept = 0
    for ratio in (1.0, 1.5, 2.5, 5.0, 50.0):
        decision = losses.bayesian_update(**arguments, cost_ratio=ratio)
        now = int((decision.label == old).sum())
        assert now >= kept
        kept = now


def test_a_tie_keeps_olds_label():
    flat = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    decision = losses.bayesian_update(
        old=saying([0, 1, 2], 3),
        new=saying([2, 2, 0], 3),
        old_confusion=flat,
        new_confusion=flat,
        cost_ratio=1.0,
    )
    assert decision.label.tolist() == [0, 1, 2]
    assert_close(decision.posterior, flat, 1e-12)


def test_many_classes_and_tiny_chances_still_sum_to_one():
    tiny = torch.full((4, 4), 1e-30, dtype=torch.float64)
    tiny.fill_diagonal_(1.0)
    decision = losses.bayesian_update(
        old=saying([0], 4), new=saying([1], 4), old_confusion=tiny, new_confusion=tiny
    )
    assert float(decision.posterior.sum()) == pytest.approx(1.0)
    assert torch.isfinite(decision.posterior).all()
    assert decision.label.tolist() == [0]


@pytest.mark.parametrize("kind", ["linear", "step", "none"])
@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("steps", [1, 4, 7])
def test_a_ramp_step_by_step(kind, strength, steps):
    ramp = losses.Ramp(kind=kind, strength=strength, steps=steps)
    expected = list(plain.steps_of_a_ramp(kind, strength, steps, 12))
    assert [ramp(step) for step in range(12)] == pytest.approx(expected)
    assert all(isinstance(ramp(step), float) for step in range(3))
    on_device = ramp(torch.arange(12))
    assert isinstance(on_device, Tensor)
    assert on_device.tolist() == pytest.approx(expected)
    assert isinstance(ramp(torch.tensor(3)), Tensor)


def test_a_ramp_of_no_steps_is_there_at_once():
    assert [losses.Ramp(strength=2.0, steps=0)(step) for step in (1, 2)] == [2.0, 2.0]
    assert [losses.Ramp(kind="none", strength=2.0)(step) for step in (0, 1)] == [2.0, 2.0]
    # A step counts from the one after its last.
    assert [losses.Ramp(kind="step", strength=2.0, steps=0)(s) for s in (0, 1)] == [0.0, 2.0]
    at_once = losses.Ramp(strength=2.0, steps=0)(torch.tensor([1, 2]))
    assert at_once.tolist() == [2.0, 2.0]
    assert math.isfinite(losses.Ramp(strength=2.0, steps=0)(0))
