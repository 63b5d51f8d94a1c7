"""A call leaves no trace: in weights, buffers, modes, random streams, gradients, autocast."""

from __future__ import annotations

import copy
import pickle
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import GoogLeNetOutputs

from flipguard.errors import InputError
from flipguard.references import Ensemble, OldModel, Peer, Reference
from flipguard.references.reference import device_of
from tests.references.models import (
    CLASSES,
    MODELS,
    WAYS,
    Changing,
    Gambler,
    bert,
    held,
    images,
    mlp,
    modes,
    words,
)

# The stream that numpy's functions share, and that most code still draws from.
NUMPY: Any = np.random.mtrand._rand
KINDS = {
    "old": OldModel,
    "ensemble": lambda model: Ensemble([model, model]),
    "peer": lambda model: Peer(model, every=1),
}
X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])


def streams() -> tuple[Any, ...]:
    """The next numbers of every stream, which stay to be drawn."""
    states = torch.get_rng_state(), random.getstate(), NUMPY.get_state()
    drawn = torch.rand(3).tolist(), random.random(), NUMPY.random(3).tolist()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    NUMPY.set_state(states[2])
    return drawn


# -- weights, buffers and modes ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_real_models_answer_as_in_eval_mode_and_stay_as_they_were(name: str, kind: str) -> None:
    build, batch = MODELS[name]
    model = build().train()
    # Mixed modes, as of a model whose batch normalisation is frozen while the rest is tuned.
    for module in list(model.modules())[2::3]:
        module.training = False
    model_before, modes_before = held(model), modes(model)
    assert True in modes_before
    assert False in modes_before
    keys, before = list(model.state_dict()), streams()
    reference: Reference = KINDS[kind](model)
    logits = reference(batch())
    again = reference(batch())
    assert held(model) == model_before
    assert modes(model) == modes_before
    assert list(model.state_dict()) == keys
    assert streams() == before
    assert logits.shape == (4, CLASSES)
    assert not logits.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(logits, again)
    with torch.no_grad():
        output = copy.deepcopy(model).eval()(batch())
    torch.testing.assert_close(logits, output if isinstance(output, Tensor) else output.logits)


def test_the_cases_above_would_show_a_trace() -> None:
    for build, batch in MODELS.values():
        model, drawn = build().train(), streams()
        model_before = held(model)
        output = model(batch())
        # Dropout draws, and batch normalisation learns where there is any.
        assert streams() != drawn
        normalised = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        assert (held(model) != model_before) == normalised
        assert (output if isinstance(output, Tensor) else output.logits).requires_grad


def test_a_model_that_rewrites_its_weights_in_eval_is_not_asked_to() -> None:
    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> Merging:
            self.weight.data.mul_(1.0 if mode else 2.0)
            return super().train(mode)

    model = Merging(3, 2)
    before = held(model)
    OldModel(model)(X)
    assert held(model) == before


def test_modes_come_back_where_a_model_sets_them_itself() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quiet = nn.Dropout().eval()

        def forward(self, x: Tensor) -> Tensor:
            self.quiet.train()
            return x

    model = Moody()
    OldModel(model)(X)
    assert modes(model) == [True, False]


def test_modes_come_back_where_a_call_raises() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout().eval(), Changing("and_raises")))
    before, flags, drawn = held(model), modes(model), streams()
    reference = OldModel(model)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no logits today"):
            reference(X)
        assert held(model) == before
        assert modes(model) == flags == [True, True, True, False, True]
        assert streams() == drawn
        assert torch.is_grad_enabled()


# -- models that change themselves ---------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS)
def test_a_model_that_changes_its_buffers_is_put_back_after_every_call(how: str) -> None:
    model = nn.ModuleDict({"inner": Changing(how)})
    model.forward = lambda x: model["inner"](x)  # type: ignore[method-assign]
    plain = Changing(how)
    state = held(model)
    expected = plain(X)
    assert how == "after_three_calls" or held(plain) != held(Changing(how)), "it does change"
    reference = OldModel(model)
    for call in range(6):
        late = how == "after_three_calls" and call >= 3
        given = reference(X)
        assert torch.equal(given, X + 1 if late else expected), call
        assert held(model) == state, call
        assert list(model.state_dict()) == ["inner.calls", "inner.mean", "inner.variance"]


def test_a_change_that_others_make_between_calls_is_kept() -> None:
    for how in ("in_place", "by_data"):
        model = Changing(how)
        reference = OldModel(model)
        reference(X)
        model.calls.fill_(10)
        assert torch.equal(reference(X), X + 11)
        model.calls.data.fill_(20)
        assert torch.equal(reference(X), X + 21)
        model.calls = torch.tensor(30)
        assert torch.equal(reference(X), X + 31)
        assert int(model.calls) == 30


def test_a_change_that_others_make_before_a_late_one_is_kept() -> None:
    model = Changing("after_three_calls")
    reference = OldModel(model)
    reference(X)
    model.calls.fill_(10)
    given = [reference(X) for _ in range(6)]
    assert torch.equal(given[1], X + 10)
    # The model's own first change could not be foreseen; there is no second.
    assert all(torch.equal(one, X + 12) for one in given[3:])
    assert int(model.calls) == 11


def test_ordinary_models_are_copied_in_the_first_call_only() -> None:
    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        clones = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.clones += func is torch.ops.aten.clone.default
            return func(*args, **kwargs or {})

    def clones(reference: Reference) -> int:
        with Counting() as counting:
            reference(images())
        return counting.clones

    model = mlp()
    reference = OldModel(model)
    assert clones(reference) == 3  # the buffers of one batch normalisation
    assert clones(reference) == 0
    model[2].running_mean.add_(1.0)  # type: ignore[index, operator, union-attr]
    assert clones(reference) == 0


def test_a_model_that_rewrites_its_parameters_is_refused() -> None:
    class Learning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.layer.bias.add_(1.0)
            logits: Tensor = self.layer(x)
            return logits

    text = (
        "Expected `model` to leave its parameters alone in eval mode, but got a change of "
        "'layer.bias' in place. Give a model that learns in train mode only."
    )
    model = Learning()
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        OldModel(model)(X)
    assert modes(model) == [True, True]


def test_a_parameter_that_is_replaced_comes_back() -> None:
    class Replacing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.bias = nn.Parameter(self.bias + 1.0)
            return super().forward(x)

    model = Replacing(3, 2)
    before = held(model)
    reference = OldModel(model)
    assert torch.equal(reference(X), reference(X))
    assert held(model) == before


def test_a_result_in_the_models_own_memory_is_a_copy() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("table", torch.zeros(4, 2))
            self.table: Tensor

        def forward(self, rows: int) -> Tensor:
            self.table.add_(1.0)
            return self.table[:rows]

    model = Table()
    reference = OldModel(model)
    first = reference(2)
    first.add_(5.0)
    assert torch.equal(reference(2), torch.ones(2, 2))
    assert torch.equal(model.table, torch.zeros(4, 2))


# -- random numbers ------------------------------------------------------------------------------


def test_no_stream_moves_even_if_a_model_draws_in_eval_mode() -> None:
    model = Gambler()
    torch.manual_seed(1)
    random.seed(2)
    NUMPY.seed(3)
    before = streams()
    reference, function = OldModel(model), OldModel(lambda x: model(x))
    first = reference(X)
    assert streams() == before
    assert torch.equal(function(X), first)
    assert streams() == before
    model(X)
    now = streams()
    assert all(a != b for a, b in zip(now, before, strict=True)), "it does draw from each"


# -- gradients, autocast, inference --------------------------------------------------------------


def test_no_gradient_reaches_a_reference() -> None:
    teacher, student = mlp(1), mlp(2)
    for reference in (
        OldModel(teacher),
        OldModel(lambda x: teacher(x)),
        Ensemble([teacher, lambda x: teacher(x)]),
    ):
        batch = images().requires_grad_()
        logits = reference(batch)
        assert logits.grad_fn is None
        ((student(images()) - logits) ** 2).sum().backward()
        assert batch.grad is None
        assert all(parameter.grad is None for parameter in teacher.parameters())
        assert all(parameter.grad is not None for parameter in student.parameters())


def test_a_model_that_turns_gradients_on_gives_none_either() -> None:
    layer = nn.Linear(3, 2)

    class Stubborn(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                logits: Tensor = layer(x)
                return logits

    class Learnt(Reference):
        def __call__(self, x: Tensor) -> Tensor:
            logits: Tensor = layer(x)
            return logits

        def to(self, device: torch.device | str) -> Learnt:
            return self

    assert Stubborn()(X).requires_grad
    assert Learnt()(X).requires_grad
    for model in (Stubborn(), Stubborn().forward, lambda x: Stubborn()(x), Learnt()):
        assert not OldModel(model)(X).requires_grad
        assert not Ensemble([model])(X).requires_grad


def test_the_callers_autocast_applies() -> None:
    reference = OldModel(nn.Linear(3, 2))
    assert reference(X).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert reference(X).dtype == torch.bfloat16
        assert Ensemble([reference])(X).dtype == torch.float32


def test_autocast_keeps_no_cast_of_weights_that_change() -> None:
    model = nn.Linear(3, 2)
    reference = OldModel(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reference(X)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.fill_(1.0)
        assert torch.equal(reference(X), torch.ones(2, 2, dtype=torch.bfloat16))


def test_weights_shared_with_the_student_still_learn_under_autocast() -> None:
    shared = nn.Linear(3, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.is_autocast_cache_enabled()
        OldModel(shared)(X)
        assert torch.is_autocast_cache_enabled()
        loss = shared(X).sum()
    loss.backward()
    assert shared.weight.grad is not None


def test_a_graph_that_the_student_built_before_survives_the_call() -> None:
    # In eval mode batch normalisation saves its buffers for the gradient.
    shared = nn.BatchNorm1d(3).eval()
    loss = shared(X).sum()
    OldModel(shared)(X)
    loss.backward()


def test_inference_mode_around_a_first_call_spoils_nothing() -> None:
    model = mlp()
    reference = OldModel(model)
    with torch.inference_mode():
        first = reference(images())
    assert torch.equal(reference(images()), first)
    model(images()).sum().backward()
    with torch.inference_mode():
        made = mlp()
    assert torch.equal(OldModel(made)(images()), first)
    with torch.inference_mode():
        reference.to("meta")
    assert not any(t.is_inference() for t in (*model.parameters(), *model.buffers()))


def test_a_compiled_step_gives_the_same() -> None:
    old = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    reference, student = Ensemble([old, OldModel(old)]), nn.Linear(3, 4)

    def loss(x: Tensor) -> Tensor:
        return ((student(x) - reference(x)) ** 2).mean()

    before = held(old)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), loss(X))
    assert held(old) == before
    assert modes(old) == [True] * 4
    compiled(X).backward()
    assert student.weight.grad is not None


# -- outputs and inputs --------------------------------------------------------------------------


def test_outputs_of_transformers_and_others_are_understood() -> None:
    model = bert().eval()
    with torch.no_grad():
        expected = model(input_ids=words(), attention_mask=torch.ones_like(words())).logits
    batch = {"input_ids": words(), "attention_mask": torch.ones_like(words())}
    assert torch.equal(OldModel(model)(**batch), expected)
    assert torch.equal(OldModel(lambda: {"logits": X})(), X)
    assert torch.equal(OldModel(lambda: GoogLeNetOutputs(X, X + 1, X + 2))(), X)
    assert torch.equal(OldModel(lambda: (None, X), output=lambda pair: pair[1])(), X)


@pytest.mark.parametrize(
    ("output", "kind"),
    [((X, X), "tuple"), (None, "NoneType"), ({"scores": X}, "dict"), ({"logits": None}, "dict")],
)
def test_other_outputs_are_refused(output: object, kind: str) -> None:
    text = (
        "Expected `model` to return a tensor, an object with `.logits` or a mapping with "
        f"'logits', but got {kind}. Pass `output=`, a callable that picks the logits from what "
        "the model returns."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        OldModel(lambda: output)()


def test_an_output_that_picks_no_logits_is_refused() -> None:
    text = (
        "Expected `output` to pick a tensor of logits, but got list. Give a callable that picks "
        "the logits from what the model returns."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        OldModel(lambda: X, output=lambda logits: logits.tolist())()
    text = (
        "Expected `model` to return logits as floats, but got torch.int64. Return the scores of "
        "all classes, not the predicted class."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        OldModel(lambda: X.argmax(dim=1))()


@pytest.mark.parametrize(("model", "kind"), [("old.pt", "str"), (nn.Linear, "Linear")])
def test_what_is_no_model_is_refused(model: Any, kind: str) -> None:
    text = (
        f"Expected `model` to be a model or a callable that gives logits, but got {kind}. Build "
        "or load the model first."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        OldModel(model)


def test_an_output_that_is_no_callable_is_refused() -> None:
    text = (
        "Expected `output` to be a callable, but got str. Give one that picks the logits from "
        "what the model returns."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        OldModel(nn.Linear(3, 2), output="logits")  # type: ignore[arg-type]


def test_the_first_tensor_tells_the_device() -> None:
    there = torch.empty(1, device="meta")
    assert device_of(((), {})) is None
    assert device_of((3, "text", {"a": [None, {"b": (there,)}]}, X)) == there.device
    assert device_of(([X], there)) == X.device


def test_a_model_follows_the_batch() -> None:
    model = nn.Linear(3, 2)
    reference = OldModel(model)
    assert reference(X.to("meta")).device.type == "meta"
    assert model.weight.device.type == "meta"
    model = nn.Linear(3, 2)
    assert OldModel(model).to("meta").model is model
    assert model.weight.device.type == "meta"
    assert Ensemble([OldModel(nn.Linear(3, 2))]).to("meta")(X.to("meta")).device.type == "meta"


def test_a_bound_method_is_guarded_as_its_module_is() -> None:
    model = mlp()
    before, flags = held(model), modes(model)
    assert torch.equal(OldModel(model.forward)(images()), OldModel(model)(images()))
    assert held(model) == before
    assert modes(model) == flags


# -- together with a student -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_does_not_see_the_reference_that_it_holds(kind: str) -> None:
    teacher, student = mlp(1), nn.Linear(3, 2)
    reference = KINDS[kind](teacher)
    flags = modes(teacher)
    student.reference = reference
    student.references = [reference]  # type: ignore[assignment]
    assert list(student.state_dict()) == ["weight", "bias"]
    assert len(list(student.parameters())) == 2
    assert list(student.modules()) == [student]
    student.train(False)
    student.requires_grad_(False)
    student.double()
    assert modes(teacher) == flags
    assert all(p.requires_grad and p.dtype == torch.float32 for p in teacher.parameters())
    assert reference(images()).dtype == torch.float32
    average = copy.deepcopy(student)
    assert average.reference is reference
    assert average.references[0] is reference  # type: ignore[index]
    averaged = torch.optim.swa_utils.AveragedModel(student)
    assert averaged.module.reference is reference
    assert "reference" not in "".join(averaged.state_dict())


def test_references_can_be_sent_to_other_processes() -> None:
    reference = Ensemble([mlp(1), OldModel(mlp(2))], weights=[1.0, 3.0])
    expected = reference(images())
    assert torch.equal(pickle.loads(pickle.dumps(reference))(images()), expected)
    picked = OldModel(mlp(1), output=torch.neg)
    assert torch.equal(pickle.loads(pickle.dumps(picked))(images()), -OldModel(mlp(1))(images()))
