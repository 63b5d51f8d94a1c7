"""On a GPU: the host never waits, models follow the batch, graphs can be captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flipguard.references import Ensemble, OldModel, Peer, StoredLogits
from tests.references.models import WAYS, Changing, Gambler, images, mlp

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def state(model: nn.Module) -> dict[str, list[float]]:
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {
        name: tensor.detach().cpu().nan_to_num(-1.0).flatten().tolist() for name, tensor in tensors
    }


def test_the_host_never_waits() -> None:
    first, second = mlp(1).cuda(), mlp(2).cuda()
    before = state(first)
    batch = images().cuda()
    peer = Peer(second, every=1)
    references = [OldModel(first), Ensemble([first, second], temperatures=[2.0, 1.0]), peer]
    with no_waiting():
        for _ in range(4):
            given = [reference(batch) for reference in references]
            peer.step()
    assert state(first) == before
    expected = OldModel(mlp(1))(images())
    torch.testing.assert_close(given[0].cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("how", [way for way in WAYS if way not in ("resized",)])
def test_models_that_change_themselves_are_put_back_without_waiting(how: str) -> None:
    model, x = Changing(how).cuda(), torch.rand(2, 3, device="cuda")
    before = state(model)
    reference = OldModel(model)
    with no_waiting():
        given = [reference(x) for _ in range(3)]
    assert state(model) == before
    assert all(torch.equal(one, given[0]) for one in given)
    torch.cuda.synchronize()
    for _ in range(3):
        reference(x)
    assert state(model) == before
    assert how == "after_three_calls" or reference._frozen._watch._changes is True  # type: ignore[union-attr]


def test_an_ordinary_model_is_found_to_be_one() -> None:
    reference, batch = OldModel(mlp().cuda()), images().cuda()
    reference(batch)
    torch.cuda.synchronize()
    reference(batch)
    assert reference._frozen._watch._changes is False  # type: ignore[union-attr]


def test_random_streams_of_the_device_do_not_move() -> None:
    x = torch.ones(4, 4, device="cuda")
    torch.cuda.manual_seed(3)
    expected = torch.rand(5, device="cuda")
    torch.cuda.manual_seed(3)
    first = OldModel(Gambler())(x)
    assert torch.equal(torch.rand(5, device="cuda"), expected)
    torch.cuda.manual_seed(3)
    assert torch.equal(OldModel(Gambler())(x), first)


def test_models_and_members_follow_the_batch() -> None:
    model = mlp(1)
    ensemble = Ensemble([model, OldModel(mlp(2))])
    assert ensemble(images().cuda()).device.type == "cuda"
    assert next(model.parameters()).device.type == "cuda"
    assert ensemble(images()).device.type == "cpu"
    live = mlp(3)
    peer = Peer(live, every=1)
    assert peer(images().cuda()).device.type == "cuda"
    peer.step()
    assert next(live.parameters()).device.type == "cpu"
    torch.testing.assert_close(peer(images()), OldModel(live)(images()))


@pytest.mark.parametrize("how", ["ordinary", "in_place", "reassigned"])
def test_a_call_can_be_captured_in_a_graph(how: str) -> None:
    model = (nn.Linear(3, 3) if how == "ordinary" else Changing(how)).cuda()
    reference, x = Ensemble([model, model]), torch.zeros(2, 3, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            reference(x)
    torch.cuda.synchronize()
    before = state(model)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        given = reference(x)
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(given, reference(x))
        assert state(model) == before


def test_recurrent_layers_that_pack_their_weights_are_no_offence() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.layer.flatten_parameters()
            logits: Tensor = self.layer(x)[0][-1]
            return logits

    model = Recurrent().cuda()
    before = state(model)
    reference, x = OldModel(model), torch.rand(5, 2, 3, device="cuda")
    assert torch.equal(reference(x), reference(x))
    assert state(model) == before


@pytest.mark.parametrize("ids", [None, [40, 10, 30, 20]])
def test_stored_logits_are_looked_up_on_the_device(ids: list[int] | None, tmp_path: Path) -> None:
    logits = torch.arange(8.0, dtype=torch.float16).reshape(4, 2)
    names = torch.tensor(ids or [0, 1, 2, 3])
    np.save(tmp_path / "logits.npy", logits.numpy())
    stored = StoredLogits(logits, ids=ids).to("cuda")
    asked = names[[3, 0, 0]].cuda()
    with no_waiting():
        rows = stored(asked)
    assert rows.device.type == "cuda"
    assert torch.equal(rows.cpu(), logits[[3, 0, 0]])
    assert torch.equal(stored(asked.cpu()), logits[[3, 0, 0]])
    assert stored(asked.tolist()).device.type == "cuda"
    assert torch.equal(StoredLogits(logits, ids=ids)(asked), rows)
    if ids is None:
        mapped = StoredLogits.read(tmp_path / "logits.npy")
        assert torch.equal(mapped(asked), rows)
        assert torch.equal(mapped.to("cuda")(asked), rows)
