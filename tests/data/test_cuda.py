"""On a GPU: the same numbers and the same changed inputs, bit for bit, and no waiting."""

from __future__ import annotations

import pytest
import torch

from flipguard.data import ArraySplit, build_augmentation, load_data, part
from flipguard.randomness import bell, bits, integers, uniform
from tests.data.test_augment import EVERY, batch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
IDS = torch.cat([torch.arange(5000), torch.tensor([2**62, -(2**63), -1])])


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -5])
def test_the_numbers_are_those_of_the_host(seed: int) -> None:
    there = IDS.cuda()
    for draw in (bits, uniform, bell):
        assert torch.equal(draw(seed, 3, there, 2).cpu(), draw(seed, 3, IDS, 2))
        moving = torch.tensor(3, device="cuda")
        assert torch.equal(draw(seed, moving, there, 2).cpu(), draw(seed, 3, IDS, 2))
    assert torch.equal(
        integers(seed, 3, there, 2, below=9).cpu(), integers(seed, 3, IDS, 2, below=9)
    )
    assert torch.equal(part(there, seed, 0.3).cpu(), part(IDS, seed, 0.3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_inputs_are_changed_as_on_the_host_without_waiting(
    kind: str, spec: str, dtype: torch.dtype
) -> None:
    change, inputs, ids = build_augmentation(spec), batch(kind, 67, dtype), torch.arange(67)
    there, ids_there = inputs.cuda(), ids.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = change(there, ids_index=ids_there, epoch=2, seed=5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.cpu(), change(inputs, ids_index=ids, epoch=2, seed=5))


@pytest.mark.parametrize("size", [8, 64])
def test_boxes_are_resized_as_on_the_host(size: int) -> None:
    images = torch.randint(0, 256, (500, 3, 37, 50), dtype=torch.uint8)
    change, ids = build_augmentation(f"random-resized-crop:size={size}"), torch.arange(500)
    for inputs in (images, images.float() / 127.5 - 1, images.half()):
        found = change(inputs.cuda(), ids_index=ids.cuda(), epoch=1, seed=2)
        assert torch.equal(found.cpu(), change(inputs, ids_index=ids, epoch=1, seed=2))


@pytest.mark.parametrize("spec", ["crop-flip", "random-resized-crop"])
def test_a_captured_graph_moves_on_with_the_epoch(spec: str) -> None:
    change, inputs, ids = build_augmentation(spec), batch("image", 8).cuda(), torch.arange(8)
    ids, epoch = ids.cuda(), torch.zeros((), dtype=torch.int64, device="cuda")
    change(inputs, ids_index=ids, epoch=epoch, seed=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = change(inputs, ids_index=ids, epoch=epoch, seed=0)
    for number in range(3):
        epoch.fill_(number)
        graph.replay()
        expected = change(inputs.cpu(), ids_index=ids.cpu(), epoch=number, seed=0)
        assert torch.equal(found.cpu(), expected)


def test_a_split_is_held_on_the_device() -> None:
    split = load_data("mnist1d:train=50,test=10").train
    assert isinstance(split, ArraySplit)
    there = split.to("cuda")
    assert there.targets.is_cuda
    assert there.ids_index.is_cuda
    assert there.inputs(torch.tensor([3, 1])).is_cuda
    assert torch.equal(there.inputs(torch.tensor([3, 1])).cpu(), split.inputs(torch.tensor([3, 1])))
    assert there.fingerprint() == split.fingerprint()
    assert torch.equal(
        there.subset(there.targets == 1).ids_index.cpu(), split.ids_index[split.targets == 1]
    )
