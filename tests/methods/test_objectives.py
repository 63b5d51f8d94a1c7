"""Value and gradient of the whole objective of every method, compared with its paper.

The objective is built as `train` builds it and called through the module that the loop calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from flipguard.data import ArraySplit, load_data
from flipguard.errors import InputError
from flipguard.methods import METHODS, Objective
from flipguard.models import build_model
from flipguard.runs.folder import MODEL
from flipguard.training.checkpoint import EnsembleModel
from flipguard.training.checks import complete_config
from tests.losses import transcription as plain
from tests.methods import equations
from tests.methods import other_equations as others
from tests.methods.cases import CASES, Call, Case, confusion_of
from tests.methods.equations import Said
from tests.methods.scenes import (
    CLASSES,
    STEPS,
    Scene,
    Table,
    build,
    gradients_of,
    minimised,
    options_of,
    parameters,
    scene,
)
from tests.training.tiny import tiny, trained


def says(model: nn.Module, at: Scene) -> list[plain.Row]:
    return plain.rows(model(at.inputs))


def said_of(at: Scene, number: int) -> Said:
    with torch.no_grad():
        olds = [says(old, at) for old in at.olds]
    return Said(
        new=says(at.student, at),
        target=at.target.tolist(),
        olds=olds,
        match=at.match,
        twin=says(at.twin, at),
        members=[says(member, at) for member in at.members],
        number=number,
        smoothing=at.smoothing,
    )


def stir(at: Scene, by: float = 0.03, seed: int = 3) -> None:
    """Change the weights of trained models, so that copies made earlier differ from them."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for model in (at.student, at.twin):
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=drawn, dtype=parameter.dtype)
                parameter.add_(noise, alpha=by)


def same(found: Tensor, wanted: Tensor, what: str, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        found, wanted, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )


def check(objective: Objective, at: Scene, number: int | Tensor, expected: Tensor) -> None:
    """The value, and the gradient for the parameters of all models, trained or not."""
    value = minimised(objective, at, number)
    # A replayed step counts its strength in single precision.
    tolerance = 1e-6 if isinstance(number, Tensor) else 1e-9
    same(value, expected, "value", tolerance)
    of = parameters({**at.models(), "trained": objective.trained})
    wanted = gradients_of(expected, of)
    assert any(bool(one.any()) for one in wanted.values())
    for name, found in gradients_of(value, of).items():
        same(found, wanted[name], name, tolerance)


def stale_of(at: Scene) -> dict[str, list[plain.Row]]:
    with torch.no_grad():
        return {"student": says(at.student, at), "twin": says(at.twin, at)}


@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_a_method_minimises_its_equation(case: Case) -> None:
    # No paper smooths labels; every method can.
    at = scene(case.scene, olds=case.olds, smoothing=0.0 if case.kind == "printed" else 0.1)
    objective = build(case.name, case.options, at)
    objective.trained.double()
    stale = stale_of(at)
    stir(at)
    call = Call(said=said_of(at, case.number), at=at, objective=objective, stale=stale)
    check(objective, at, case.number, case.equation(call))


# --- what the cases hold ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tables", "grown"])
def test_the_batch_has_every_outcome(kind: str) -> None:
    at = scene(kind)
    said = said_of(at, 0)
    found = set()
    for new, old, label in zip(said.new, said.old, said.target, strict=True):
        right = said.match.in_new(plain.prediction(old)) == label
        found.add((right, plain.prediction(new) == label, said.match.known(label)))
    assert {(True, True, True), (True, False, True), (False, True, True), (False, False, True)} <= (
        found
    )
    if kind == "grown":
        assert (False, False, False) in found
        assert -1 in {said.match.in_new(plain.prediction(old)) for old in said.old}


def test_every_method_has_an_equation() -> None:
    for kind in ("printed", "default"):
        assert {case.method for case in CASES if case.kind == kind} | set(APART) == set(METHODS)
    assert not set(APART) & {case.method for case in CASES}


# Which members there are, and how their logits are stored.
NOT_IN_THE_EQUATION = {
    "elodi": {"members", "guide", "reuse", "views_top", "views_dtype"},
    "dropout": {"rate"},  # of the model: see below
}


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("ensemble", "mixout")])
def test_every_option_has_an_equation(name: str) -> None:
    """Each option with another value than its default, and each word that it may be."""
    cases = [case for case in CASES if case.method == name]
    for option in METHODS[name].options:
        if option.name in NOT_IN_THE_EQUATION.get(name, ()):
            continue
        given = {options_of(case.name, case.options)[option.name] for case in cases}
        assert given - {option.default}, option.name
        assert set(option.choices) <= given, option.name


# --- over time -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "step"])
@pytest.mark.parametrize("plus", ["nothing", "entropy", "skl"])
@pytest.mark.parametrize("ramp", [0.1, 0.0])
def test_strengths_grow_as_printed(plus: str, ramp: float, kind: str) -> None:
    """beta_t = min(c t, beta), or > 0 iff t > t_0; as a number, and as that of a replayed step."""
    at = scene()
    options = {"beta": 0.5, "alpha": 0.3, "ramp": ramp, "plus": plus, "floor": 0.0}
    objective = build("codistill-skl", {**options, "burn_in": ramp, "ramp_kind": kind}, at)
    growth = int(ramp * STEPS)
    for number in (0, 1, 13, growth - 1, growth, growth + 1, STEPS - 1):
        if number < 0:
            continue
        expected = equations.codistill(
            said_of(at, number),
            "skl",
            **{"growth" if kind == "linear" else "burn_in": growth},
            beta=0.5,
            plus=plus,
            alpha=0.3,
        )
        check(objective, at, number, expected)
        check(objective, at, torch.tensor(number), expected)


def test_peers_are_as_old_as_printed() -> None:
    """beta(t) > 0 iff t > t_0; the peers are the states of the last step that 3 divides."""
    at = scene()
    objective = build("codistill-ce", {"beta": 0.5, "burn_in": 0.02, "every": 3}, at)
    stale = stale_of(at)
    for number in range(11):
        if number % 3 == 0:
            stale = stale_of(at)
        expected = equations.codistill(
            said_of(at, number),
            "ce",
            stale_new=stale["student"],
            stale_twin=stale["twin"],
            beta=0.5,
            burn_in=4,
        )
        check(objective, at, number, expected)
        stir(at, seed=number)
        objective.after_step()


def test_new_votes_are_counted_after_an_epoch() -> None:
    at = scene()
    objective = build("bu-cr", {"cost_ratio": 1.5}, at)
    old_confusion = confusion_of(at.olds[0], at)
    answers = []
    for new_confusion in ([[1 / CLASSES] * CLASSES] * CLASSES, confusion_of(at.student, at)):
        said = said_of(at, 0)
        numbers = {"old_confusion": old_confusion, "new_confusion": new_confusion}
        check(objective, at, 0, others.bu_cr(said, **numbers, cost_ratio=1.5))
        answers.append(others.answers(said, **numbers, cost_ratio=1.5))
        objective.after_epoch()
    # The update follows old, follows another answer, and learns from new's predictions.
    votes = [plain.prediction(old) for old in said.old]
    assert any(a == b for a, b in zip(answers[0], votes, strict=True))
    assert any(a != b for a, b in zip(answers[0], votes, strict=True))
    assert answers[0] != answers[1]


def test_a_batch_of_new_classes_gives_the_base_times_the_distance() -> None:
    """PCT eq. 7: every sample has the base; old is right on none of these."""
    at = scene("grown")
    unknown = [label for label in range(CLASSES) if not at.match.known(label)]
    at.target = torch.tensor([unknown[i % len(unknown)] for i in range(len(at.target))])
    objective = build("fd-lm", {"class_reduction": "sum", "base": 0.5}, at)
    found = said_of(at, 0)
    distance = [
        equations.half_squared(*equations.shared(found, new, old))
        for new, old in zip(found.new, found.old, strict=True)
    ]
    check(objective, at, 0, equations.task(found) + 0.5 * equations.mean(distance))


def test_the_loop_goes_down_on_the_whole_objective(tmp_path: Path) -> None:
    """One step of plain SGD on a batch in two pieces."""
    recipe = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    recipe |= {"schedule": "constant", "learning_rate": 0.5, "batch_size": 8, "accumulate": 2}
    config = tiny(
        "skl",
        epochs=1,
        data="mnist1d:train=16,test=100",
        recipe=recipe,
        options={"alpha": 0.3},
        machine={"precision": "64-true"},
    )
    run = trained(config, tmp_path)
    train = load_data(config.data).train
    assert isinstance(train, ArraySplit)
    seed = config.seeds.of("init")
    model = build_model(config.model, classes=10, input_shape=(40,), seed=seed).double()
    said = Said(
        new=plain.rows(model(torch.as_tensor(train.all_inputs).double())),
        target=torch.as_tensor(train.targets).tolist(),
    )
    expected = equations.skl(said, alpha=0.3, floor=1e-7)
    of = dict(model.named_parameters())
    found = load_file(run.folder / MODEL)
    for name, slope in gradients_of(expected, of).items():
        same(found[name].double(), of[name].detach() - 0.5 * slope, name, 1e-7)


# --- apart -----------------------------------------------------------------------------------


def test_an_ensemble_averages_logits() -> None:
    """PCT eq. 10: the softmax of the mean logits, not the mean of the softmax."""
    at = scene()
    found = EnsembleModel(at.members)(at.inputs)
    wanted = equations.ensemble(said_of(at, 0).members)
    same(found, torch.stack([torch.stack(row) for row in wanted]), "logits")
    with pytest.raises(
        InputError, match="Expected the members of `ensemble` to be trained separately"
    ):
        build("ensemble", {}, at)


@pytest.mark.parametrize(("options", "share"), [({}, 0.5), ({"share": 0.9}, 0.9)])
def test_mixout_is_its_equation(options: dict[str, float], share: float) -> None:
    at = scene(smoothing=0.1)
    objective = build("mixout", options, at)
    stir(at)
    assert isinstance(at.student, Table)
    assert objective.forward is not None
    torch.manual_seed(5)
    mixed = objective.forward(at.student, at.inputs)
    rows = at.inputs[:, 0].long()
    weight, (old,) = at.student.scores[rows], at.olds
    anchor = old(at.inputs).detach()
    # The weights that fell back are old's.
    kept = (mixed - anchor).abs() > 1e-12
    assert 0 < kept.sum() < kept.numel()
    assert abs(float(1 - kept.double().mean()) - share) < 0.12
    said = said_of(at, 0)
    said = dataclasses.replace(said, new=others.mixout(weight, anchor, kept, share))
    torch.manual_seed(5)
    check(objective, at, 0, equations.task(said))
    at.student.eval()
    same(objective.forward(at.student, at.inputs), at.student(at.inputs), "logits")


APART: dict[str, Callable[..., None]] = {
    "ensemble": test_an_ensemble_averages_logits,
    "mixout": test_mixout_is_its_equation,
}


@pytest.mark.parametrize(("options", "rate"), [({}, 0.1), ({"preset": "paper"}, 0.2)])
def test_dropout_drops_features_before_the_head(options: dict[str, str], rate: float) -> None:
    """ELODI's share is 0.2; 0.1 is our default."""
    _, config = complete_config(tiny("dropout", options=options))
    model = build_model(config.model, classes=CLASSES, input_shape=(40,), seed=0)
    *_, drop, head = [
        layer for layer in model.modules() if isinstance(layer, nn.Dropout | nn.Linear)
    ]
    assert isinstance(drop, nn.Dropout)
    assert isinstance(head, nn.Linear)
    assert drop.p == rate
