"""Peers: stale by as many steps as was asked for, refreshed in place, resumed exactly."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.references import OldModel, Peer
from tests.references.models import held, images, mlp, modes, timm_model


def trained_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    model.train()
    model(images(seed=seed)).square().mean().backward()
    optimizer.step()


def answers(model: nn.Module) -> Tensor:
    return OldModel(copy.deepcopy(model))(images(seed=99))


# -- staleness -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "every"), [(mlp, 1), (mlp, 2), (mlp, 3), (mlp, 5), (timm_model, 3)]
)
def test_a_peer_is_as_stale_as_was_asked_for(build: Any, every: int) -> None:
    torch.manual_seed(0)
    live = build()
    optimizer = torch.optim.SGD(live.parameters(), lr=0.1)
    peer = Peer(live, every=every)
    snapshots = [answers(live)]
    for step in range(1, 8):
        trained_step(live, optimizer, seed=step)
        before = held(live), modes(live)
        peer.step()
        assert (held(live), modes(live)) == before
        snapshots.append(answers(live))
        assert not torch.equal(snapshots[-1], snapshots[-2]), "the live model moves on"
        assert torch.equal(peer(images(seed=99)), snapshots[step - step % every]), step
        assert (held(live), modes(live)) == before
        assert peer.steps == step


def test_buffers_are_refreshed_too_also_reassigned_and_hidden_ones() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.zeros(1, 2))
            self.register_buffer("hidden", torch.zeros(1, 2), persistent=False)

        def forward(self) -> Any:
            return self.shift + self.hidden

    live = Shifted()
    peer = Peer(live, every=1)
    live.shift = torch.ones(1, 2)
    live.hidden += 10.0
    assert torch.equal(peer(), torch.zeros(1, 2))
    peer.step()
    assert torch.equal(peer(), torch.full((1, 2), 11.0))
    live.shift += 1.0
    assert torch.equal(peer(), torch.full((1, 2), 11.0)), "the copy shares no memory"


def test_a_refresh_copies_in_place_and_the_model_only_where_it_has_other_tensors() -> None:
    class Growing(nn.Linear):
        copies = 0

        def __deepcopy__(self, memo: dict[int, Any]) -> Growing:
            Growing.copies += 1
            twin = Growing(self.in_features, self.out_features, dtype=self.weight.dtype)
            twin.load_state_dict(self.state_dict())
            return twin

    live = Growing(2, 2)
    peer = Peer(live, every=1)
    assert Growing.copies == 1
    before = held(peer._copy)
    with torch.no_grad():
        live.weight.add_(1.0)
    for _ in range(5):
        peer.step()
    after = held(peer._copy)
    assert {name: place for name, (place, _) in after.items()} == {
        name: place for name, (place, _) in before.items()
    }
    assert after[".weight"][1] == held(live)[".weight"][1] != before[".weight"][1]
    assert Growing.copies == 1
    live.double()
    peer.step()
    assert Growing.copies == 2
    x = torch.ones(1, 2, dtype=torch.float64)
    assert torch.equal(peer(x), live(x))


def test_a_copy_holds_no_gradients_and_asks_for_none() -> None:
    live = mlp()
    live(images()).sum().backward()
    peer = Peer(live, every=1)
    assert all(p.grad is None and not p.requires_grad for p in peer._copy.parameters())
    assert all(p.grad is not None and p.requires_grad for p in live.parameters())


def test_two_models_learn_from_each_other() -> None:
    first, second = mlp(1), mlp(2)
    first.peer, second.peer = Peer(second, every=2), Peer(first, every=2)  # type: ignore[assignment]
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    apart = []
    for _ in range(30):
        optimizer.zero_grad()
        batch = images(16)
        loss = sum(
            ((model(batch) - model.peer(batch)) ** 2).mean()  # type: ignore[operator]
            for model in (first, second)
        )
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
        first.peer.step()  # type: ignore[operator, union-attr]
        second.peer.step()  # type: ignore[operator, union-attr]
        apart.append(float((answers(first) - answers(second)).square().mean()))
    assert apart[-1] < 0.5 * apart[0]


def test_a_compiled_live_model_is_copied_as_it_is_inside() -> None:
    live = mlp()
    peer = Peer(torch.compile(nn.DataParallel(live), backend="eager"), every=1)  # type: ignore[arg-type]
    assert torch.equal(peer(images()), OldModel(live)(images()))
    assert list(peer.state_dict()["tensors"]) == [
        *dict(live.named_parameters()),
        *dict(live.named_buffers()),
    ]


def test_only_the_copy_is_moved() -> None:
    live = nn.Linear(3, 2)
    assert Peer(live, every=1).to("meta")(torch.ones(1, 3, device="meta")).device.type == "meta"
    assert live.weight.device.type == "cpu"


# -- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_resumed_run_continues_exactly(stop: int) -> None:
    def run(live: nn.Module, peer: Peer, steps: range) -> list[Tensor]:
        given = []
        for step in steps:
            trained_step(live, torch.optim.SGD(live.parameters(), lr=0.1), seed=step)
            peer.step()
            given.append(peer(images(seed=99)))
        return given

    torch.manual_seed(5)
    live = mlp()
    peer = Peer(live, every=3)
    run(live, peer, range(stop))
    file = io.BytesIO()
    torch.save({"live": live.state_dict(), "peer": peer.state_dict()}, file)
    torch.manual_seed(6)
    expected = run(live, peer, range(stop, 8))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = mlp(seed=7)
    resumed.load_state_dict(saved["live"])
    again = Peer(resumed, every=3)
    again.load_state_dict(saved["peer"])
    torch.manual_seed(6)
    assert again.steps == stop
    assert all(
        torch.equal(a, b)
        for a, b in zip(run(resumed, again, range(stop, 8)), expected, strict=True)
    )


def test_a_state_is_a_snapshot() -> None:
    live = nn.Linear(2, 2)
    peer = Peer(live, every=1)
    state = peer.state_dict()
    kept = copy.deepcopy(state)
    with torch.no_grad():
        live.weight.add_(1.0)
    peer.step()
    assert torch.equal(state["tensors"]["weight"], kept["tensors"]["weight"])
    peer.load_state_dict(state)
    assert torch.equal(peer(torch.eye(2)), nn.functional.linear(torch.eye(2), **kept["tensors"]))
    peer.step()
    assert torch.equal(peer(torch.eye(2)), live(torch.eye(2)))
    assert not torch.equal(state["tensors"]["weight"], live.weight), "loading shares no memory"


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "shown"), [(0, "0"), (-1, "-1"), (1.5, "1.5"), (True, "True")])
def test_every_must_be_a_number_of_steps(every: Any, shown: str) -> None:
    text = (
        f"Expected `every` to be a whole number from 1 on, but got {shown}. Give the number of "
        "optimizer steps between two refreshes."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        Peer(nn.Linear(2, 2), every=every)


def test_what_is_no_module_is_refused() -> None:
    text = (
        "Expected `model` to be a torch.nn.Module, but got function. Give the model that is being "
        "trained."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        Peer(lambda x: x, every=1)  # type: ignore[arg-type]


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.cache = model(torch.ones(1, 2))
    with pytest.raises(InputError) as caught:
        Peer(model, every=1)
    assert re.fullmatch(
        r"Expected `model` to be one that can be deep-copied, but got Linear \(.*\)\. Make the "
        r"peer before the model's first call\.",
        str(caught.value),
        re.DOTALL,
    )
    assert str(caught.value).count("\n") == 0


def test_states_of_others_are_refused_and_change_nothing() -> None:
    peer = Peer(nn.Linear(2, 2), every=1)
    before = held(peer._copy)
    state = peer.state_dict()
    state["tensors"] |= {"weight": torch.zeros(3, 2), "scale": torch.zeros(1)}
    text = (
        "Expected `state` to hold the parameters and buffers of the model, but got others at "
        "'scale', 'weight'. Load it for a model of the same architecture."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        peer.load_state_dict(state)
    del state["tensors"]["bias"]
    with pytest.raises(InputError, match="but got others at 'bias', 'scale', 'weight'"):
        peer.load_state_dict(state)
    text = (
        "Expected `state` to be what Peer.state_dict() gave, but got 'weight', 'bias'. Save and "
        "load the peer's own state."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        peer.load_state_dict(nn.Linear(2, 2).state_dict())
    with pytest.raises(InputError, match="but got NoneType"):
        peer.load_state_dict(None)  # type: ignore[arg-type]
    assert held(peer._copy) == before
    assert peer.steps == 0


def test_hooks_of_the_live_model_do_not_hear_the_copy():
    live = torch.nn.Sequential(torch.nn.Linear(2, 2))
    heard = []
    live[0].register_forward_hook(lambda module, inputs, output: heard.append(output))
    peer = Peer(live, every=1)
    peer(torch.zeros(1, 2))
    assert heard == []
    live(torch.zeros(1, 2))
    assert len(heard) == 1
