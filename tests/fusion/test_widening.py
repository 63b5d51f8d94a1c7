"""Samples side by side in the channels: the same numbers, or a refusal."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.fusion import Width, regions, use_widened, widen, widest, widths
from flipguard.fusion.grouped import merged
from flipguard.fusion.place import Refusal
from flipguard.fusion.widened import WideConv, beside, kernels, long, one_by_one, wide
from flipguard.models import build_model
from flipguard.models.features import with_features
from flipguard.training import Machine, train
from flipguard.training.folder import MODEL
from tests.fusion.nets import drawn
from tests.training.tiny import images_file, tiny, trained

SHAPE, BARE = (3, 16, 16), (16, 16)
OFF = 1e-10
Maker = Callable[[], nn.Module]


def own(spec: str, shape: tuple[int, ...] = SHAPE) -> Maker:
    return lambda: build_model(spec, classes=10, input_shape=shape, seed=0)


def of_timm(name: str) -> Maker:
    return lambda: timm.create_model(name, num_classes=10)


def of_torchvision(name: str) -> Maker:
    return lambda: torchvision.models.get_model(name, num_classes=10)


def made(maker: Maker) -> nn.Module:
    torch.manual_seed(0)
    return maker().double().train()


def stepped(net: nn.Module, batches: list[Tensor], rate: float = 0.05) -> list[Tensor]:
    """What some steps of SGD give: all logits, the last gradients, and the state."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    logits = []
    for inputs in batches:
        optimizer.zero_grad()
        logits.append(net(inputs))
        F.cross_entropy(logits[-1], torch.arange(len(inputs)) % 10).backward()
        optimizer.step()
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    return [one.detach() for one in (*logits, *gradients, *net.state_dict().values())]


def alike(mine: list[Tensor], theirs: list[Tensor], *, off: float = OFF) -> None:
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=off, atol=off)


def trains_alike(maker: Maker, shape: tuple[int, ...], width: Width, *, samples: int) -> None:
    net = made(maker)
    other = copy.deepcopy(net)
    use_widened(other, width, compiled=False)
    assert other._compiled_call_impl is not None
    batches = [drawn((samples, *shape), seed=seed) for seed in range(3)]
    alike(stepped(other, batches), stepped(net, batches))
    inputs = drawn((samples, *shape), seed=3)
    alike([other.eval()(inputs)], [net.eval()(inputs)])
    use_widened(other, width, compiled=False)  # now as it answers
    alike([other(inputs)], [net(inputs)])


# The two ways to see the same memory.


@pytest.mark.parametrize("copies", [2, 4])
def test_both_views_are_the_same_memory_and_have_their_channels_last(copies: int) -> None:
    values = beside(drawn((8, 3, 5, 6)), copies)
    seen = wide(values, copies)
    back = long(seen, copies)
    assert values.data_ptr() == seen.data_ptr() == back.data_ptr()
    assert seen.shape == (8 // copies, 3 * copies, 5, 6)
    for one in (values, seen, back):
        assert one.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(back, values)
    assert torch.equal(one_by_one(values, copies), drawn((8, 3, 5, 6)))
    samples = drawn((8, 3, 5, 6)).view(8 // copies, 3 * copies, 5, 6)
    assert torch.equal(seen, samples)


def test_no_layer_of_a_network_copies_to_see_its_values_in_another_way() -> None:
    net = made(own("resnet20:width=4"))
    found: list[bool] = []

    def look(layer: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(layer, WideConv)
        found.append(wide(given[0], layer.copies).data_ptr() == given[0].data_ptr())

    widened = widen(net, 4)
    for layer in widened.modules():
        if isinstance(layer, WideConv):
            layer.register_forward_pre_hook(look)
    widened(drawn((8, *SHAPE)))
    assert len(found) == 19
    assert all(found)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("merge", [1, 2, 4])
def test_kernels_are_those_of_equal_groups_merged(merge: int, last: bool) -> None:
    weight = drawn((5, 3, 2, 2)).requires_grad_()
    laid = weight.contiguous(memory_format=torch.channels_last) if last else weight
    found, expected = kernels(laid, 4, merge), merged(weight.repeat(4, 1, 1, 1), 4, merge)
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)
    upstream = drawn(tuple(found.shape), seed=1)
    mine = torch.autograd.grad(found, weight, upstream)
    alike(list(mine), list(torch.autograd.grad(expected, weight, upstream)))


# Whole networks.

SMALL = [
    (own("resnet20:width=4"), SHAPE),
    (own("resnet18:width=4"), SHAPE),
    (own("conv2d:width=4"), SHAPE),
    (own("conv2d:width=4", BARE), BARE),
    (own("lenet5"), SHAPE),
]


@pytest.mark.parametrize("copies", [2, 4, 8])
@pytest.mark.parametrize(("maker", "shape"), SMALL)
def test_a_net_of_ours(maker: Maker, shape: tuple[int, ...], copies: int) -> None:
    trains_alike(maker, shape, Width(copies), samples=16)


@pytest.mark.parametrize("merge", [2, 4, 8])
def test_every_grouping(merge: int) -> None:
    trains_alike(own("resnet20:width=4"), SHAPE, Width(8, (merge,) * 19), samples=16)


@pytest.mark.parametrize(
    "maker", [of_timm("resnet10t"), of_timm("resnetv2_18"), of_torchvision("resnet18")]
)
def test_a_net_of_a_library(maker: Maker) -> None:
    trains_alike(maker, (3, 32, 32), Width(4, (4, 2, 1)), samples=8)


class Odd(nn.Module):
    """Operations that are seldom used, in forms that are seldom used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=(1, 2), padding=(2, 1), dilation=(2, 1))
        self.second = nn.Conv2d(4, 6, 3, padding="same", bias=False)
        self.third = nn.Conv2d(6, 6, 1)
        self.norm, self.bare = nn.BatchNorm2d(4, momentum=None), nn.BatchNorm2d(6, affine=False)
        self.untracked = nn.BatchNorm2d(6, track_running_stats=False)
        self.act, self.pool = nn.SiLU(inplace=True), nn.AvgPool2d(2, ceil_mode=True)
        self.none, self.drop, self.edge = nn.Identity(), nn.Dropout2d(0.0), nn.ZeroPad2d((1, 0))
        self.after, self.head = nn.Dropout(0.3), nn.Linear(6 * 4, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.act(self.norm(self.first(inputs * 0.5)))
        hidden = self.norm(hidden)  # twice: it counts both
        hidden = self.none(self.drop(F.dropout(hidden, 0.5, training=False)))
        hidden = F.leaky_relu(self.bare(self.second(hidden)), 0.1)
        hidden = self.edge(F.max_pool2d(hidden, 3, stride=2, padding=1)).contiguous()
        kept = F.pad(hidden, (1, 0, 1, 1), mode="reflect")[:, :, 1:-1, 1:]
        hidden = torch.add(self.untracked(self.third(hidden)).relu_(), kept)
        hidden = F.hardswish(hidden) * 2.0 + 1.0
        hidden += F.gelu(kept)
        hidden = F.pad(self.pool(hidden), (0, 0, 0, 0, 1, -1), value=0.5)
        hidden = F.adaptive_avg_pool2d(hidden, 2)
        hidden = self.after(hidden.view(hidden.size(0), -1))
        return self.head(hidden.tanh())


def test_operations_of_all_kinds() -> None:
    net = made(Odd)
    other = copy.deepcopy(net)
    use_widened(other, Width(4), compiled=False)
    batches = [drawn((8, *SHAPE), seed=seed) for seed in range(3)]
    torch.manual_seed(1)  # what drops after the pooling draws the same masks
    expected = stepped(net, batches)
    torch.manual_seed(1)
    alike(stepped(other, batches), expected)


def test_the_order_of_samples_is_kept() -> None:
    net = made(own("resnet20:width=4")).eval()
    widened = widen(net, 4)
    inputs = drawn((8, *SHAPE))
    changed = inputs.clone()
    changed[5] += 1.0
    with torch.no_grad():
        differs = (widened(inputs) - widened(changed)).abs().amax(1) > OFF
    assert differs.tolist() == [place == 5 for place in range(8)]


# What is called, and what is left as it was.


@pytest.mark.parametrize("samples", [1, 3, 6, 0])
def test_a_batch_that_cannot_be_put_side_by_side(samples: int) -> None:
    net = made(own("resnet20:width=4"))
    other = copy.deepcopy(net)
    use_widened(other, Width(4), compiled=False)
    if samples:
        inputs = drawn((samples, *SHAPE))
        assert torch.equal(other(inputs), net(inputs))
    else:
        assert other.eval()(drawn((0, *SHAPE))).shape == (0, 10)


def test_inputs_of_another_form_are_the_networks_own_affair() -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).double()
    other = copy.deepcopy(net)
    use_widened(other, Width(2), compiled=False)
    one = drawn((4, 8, 8))  # a sample without a batch
    assert torch.equal(other(one), net(one))
    assert torch.equal(other(input=one), net(input=one))
    with pytest.raises(RuntimeError):
        other(drawn((2, 4, 4, 8, 8)))


def test_another_mode_is_called_as_before() -> None:
    net = made(own("conv2d:width=4"))
    other = copy.deepcopy(net)
    use_widened(other, Width(4), compiled=False)
    inputs = drawn((8, *SHAPE))
    assert torch.equal(other.eval()(inputs), net.eval()(inputs))


def test_nothing_but_calls_changes() -> None:
    net = made(own("resnet20:width=4"))
    before = {name: id(tensor) for name, tensor in net.named_parameters()}
    names, text = list(net.state_dict()), str(net)
    use_widened(net, Width(4), compiled=False)
    assert list(net.state_dict()) == names
    assert {name: id(tensor) for name, tensor in net.named_parameters()} == before
    assert str(net) == text
    inputs = drawn((8, *SHAPE))
    twins: list[nn.Module] = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    for twin in twins:
        assert twin._compiled_call_impl is None
        alike([twin(inputs)], [copy.deepcopy(net)(inputs)])


def test_features_are_found_at_the_head() -> None:
    net = made(own("resnet20:width=4"))
    other = copy.deepcopy(net)
    use_widened(other, Width(4), compiled=False)
    inputs = drawn((8, *SHAPE))
    alike(list(with_features(other)(inputs)), list(with_features(net)(inputs)))


def test_under_autocast() -> None:
    net = made(own("resnet20:width=4")).float()
    other = copy.deepcopy(net)
    use_widened(other, Width(4), compiled=False)
    inputs = drawn((8, *SHAPE)).float()
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = other(inputs), net(inputs)
    assert mine.dtype == theirs.dtype
    torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.1)


# With what lies between convolutions as regions.


def in_parts(net: nn.Module, width: Width, shape: tuple[int, ...], off: float) -> None:
    other = copy.deepcopy(net)
    use_widened(other, width, compiled=True)
    kind = next(net.parameters()).dtype
    batches = [drawn((8, *shape), seed=seed).to(kind) for seed in range(2)]
    alike(stepped(other, batches), stepped(net, batches), off=off)


@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize(("maker", "shape"), [*SMALL, (Odd, SHAPE)])
def test_in_regions(
    maker: Maker, shape: tuple[int, ...], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "_compiled", [regions.between])
    monkeypatch.setattr(nn.Module, "compile", lambda _: None)  # of what cannot be in regions
    net = made(maker)
    if maker is Odd:
        net.after.p = 0.0  # type: ignore[union-attr]
    in_parts(net, Width(copies), shape, OFF)


def test_every_norm_and_activation_is_in_a_region_and_no_convolution() -> None:
    found = regions.in_regions(widen(made(own("resnet20:width=4")), 4))
    names = [str(node.target) for node in found.graph.nodes]
    assert sum(name.startswith("region") for name in names) == 19
    assert sum(name.startswith("wide_") for name in names) == 19
    assert not any("norm" in name or "relu" in name for name in names)


def test_an_activation_that_is_called_twice_is_in_a_region() -> None:
    found = regions.in_regions(widen(made(of_torchvision("resnet18")), 4))
    names = [str(node.target) for node in found.graph.nodes]
    assert not any("bn" in name or "relu" in name for name in names)


@pytest.mark.slow
def test_compiled_for_real() -> None:
    in_parts(made(own("conv2d:width=4")).float(), Width(4, (2, 2, 4)), SHAPE, 1e-4)


# What cannot be widened.


def sequential(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Gated(nn.Module):
    """Channels times what is known of them as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        gate = torch.sigmoid(self.gate(hidden.mean((2, 3), keepdim=True)))
        return (hidden * gate).mean((2, 3))


class Picking(nn.Module):
    """One channel, by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.first(inputs)[:, 0].mean((1, 2))


def hooked() -> nn.Module:
    net = sequential(nn.ReLU())
    net.register_forward_hook(lambda *_: None)
    return net


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (sequential(nn.Conv2d(4, 4, 3, groups=2)), "the grouped convolution `1`"),
        (sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")), "padding by reflect"),
        (sequential(nn.Dropout(0.1)), "dropout between convolutions"),
        (sequential(nn.Dropout2d(0.1)), "dropout between convolutions"),
        (sequential(nn.GroupNorm(2, 4)), "GroupNorm at `1`"),
        (sequential(nn.MaxPool2d(2, return_indices=True)), "MaxPool2d at `1`"),
        (sequential(nn.Upsample(scale_factor=2)), "Upsample at `1`"),
        (sequential(torch.nn.utils.spectral_norm(nn.Conv2d(4, 4, 1))), "hooks on `1`"),
        (hooked(), "hooks on ``"),
        (Gated(), "`mul` of samples side by side and of something else"),
        (Picking(), "`getitem` of something else than rows and columns"),
        (nn.Sequential(nn.Linear(3, 4)), "no convolution of images"),
    ],
)
def test_refusals(net: nn.Module, told: str) -> None:
    with pytest.raises(Refusal) as problem:
        use_widened(net.train(), Width(2), compiled=False)
    assert told in str(problem.value)
    assert net._compiled_call_impl is None


def test_dropout_that_drops_nothing() -> None:
    net = sequential(nn.Dropout(0.5)).double().eval()
    inputs = drawn((4, *SHAPE))
    alike([widen(net, 2)(inputs)], [net(inputs)])


# How many lie side by side.


def test_copies_that_make_sense() -> None:
    narrow, broad = made(own("resnet20")), made(own("resnet18"))
    assert widths.copies_for(narrow, 512) == [2, 4, 8]
    assert widths.copies_for(narrow, 100) == [2, 4]
    assert widths.copies_for(broad, 512) == [2]
    assert widths.copies_for(broad, 7) == []


def test_a_cpu_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widths, "_time", None)
    net = made(own("resnet20:width=4"))
    assert widest(net, drawn((8, *SHAPE))) == Width()
    assert widths.width_of(net, 4, drawn((8, *SHAPE))) == Width(4)


@pytest.mark.parametrize("fastest", [1, 2, 8])
def test_the_fastest_is_chosen(fastest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, by times that are given."""
    asked: list[int] = []

    def time(call: Any) -> float:
        call()
        net = call.args[0]
        if isinstance(net, WideConv):
            asked.append(net.merge)
            return abs(net.merge - 2)
        copies = [layer.copies for layer in net.modules() if isinstance(layer, WideConv)]
        return abs((copies or [1])[0] - fastest)

    monkeypatch.setattr(widths, "_gpu", lambda _: "a GPU")
    monkeypatch.setattr(widths, "_time", time)
    monkeypatch.setattr(widths, "_known", {})
    net = made(own("resnet20:width=4"))
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    example = drawn((8, *SHAPE))
    drawn_before = torch.get_rng_state()
    found = widest(net, example)
    assert torch.equal(torch.get_rng_state(), drawn_before)
    assert found.copies == fastest
    assert found.merges == (() if fastest == 1 else (2,) * 19)
    # Each setting once: 6 of them, and one grouping more for twice as many samples.
    assert len(asked) == 6 * (2 + 3 + 4)
    alike(list(net.state_dict().values()), list(state.values()), off=0)
    assert all(p.grad is None for p in net.parameters())
    use_widened(net, found, compiled=False)
    assert net(example).shape == (8, 10)


def test_a_network_that_cannot_be_widened_is_as_wide_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter(range(1000, 0, -1))  # whatever comes later is faster
    monkeypatch.setattr(widths, "_gpu", lambda _: "a GPU")
    monkeypatch.setattr(widths, "_time", lambda _: next(times))
    assert widest(Gated().double(), drawn((8, *SHAPE))) == Width()
    assert widest(made(own("resnet20")), drawn((8, *SHAPE))).copies > 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("half", [False, True])
def test_measured_on_a_gpu(half: bool) -> None:
    net = made(own("resnet20")).float().cuda().to(memory_format=torch.channels_last)
    inputs = drawn((64, *SHAPE)).float().cuda()

    def autocast() -> Any:
        return torch.autocast("cuda", torch.bfloat16, enabled=half)

    assert widest(net, inputs, autocast).copies in (1, 2, 4, 8)
    width = widths.width_of(net, 8, inputs, autocast)
    assert len(width.merges) == 19
    other = copy.deepcopy(net)
    use_widened(other, width, compiled=True)
    with autocast():
        mine, theirs = other(inputs), net(inputs)
    off = 0.1 if half else 1e-3
    torch.testing.assert_close(mine, theirs, rtol=off, atol=off)


# Runs.


def images(tmp_path: Path, **machine: Any) -> Any:
    config = tiny(
        "none",
        model="resnet20:width=4",
        data=images_file(tmp_path / "images.npz"),
        recipe={"batch_size": 8, "epochs": 3},
    )
    return dataclasses.replace(
        config, machine=Machine(device="cpu", precision="64-true", save_seconds=0.0, **machine)
    )


def test_a_run_gives_the_same_and_resumes(tmp_path: Path) -> None:
    called: list[int] = []
    forward = WideConv.forward

    def counted(self: WideConv, *args: Any, **kwargs: Any) -> Tensor:
        called.append(self.copies)
        return forward(self, *args, **kwargs)

    plain = load_file(trained(images(tmp_path), tmp_path / "plain").folder / MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WideConv, "forward", counted)
        run = trained(images(tmp_path, widen="on"), tmp_path / "wide")
    assert set(called[:19]) == {2}  # tried before any work; nineteen convolutions
    assert set(called[19:]) == {8}
    assert len(called) == (1 + 3 * 5) * 19
    found = load_file(run.folder / MODEL)
    assert list(found) == list(plain)
    alike(list(found.values()), list(plain.values()), off=1e-8)

    hurried = images(tmp_path, widen="on", minutes=1e-9)
    assert not trained(hurried, tmp_path / "part").finished
    # Another machine may go on with it: how samples lie is no part of what a run is.
    ended = trained(images(tmp_path, widen="auto"), tmp_path / "part", resume=True)
    assert ended.finished
    found = load_file(ended.folder / MODEL)
    alike(list(found.values()), list(plain.values()), off=1e-8)


@pytest.mark.parametrize(
    ("model", "batch", "machine", "told"),
    [
        ("resnet20:width=4", 8, {"compile": "whole"}, "but got `machine.compile=whole`"),
        ("resnet20:width=4", 8, {"checkpointing": True}, "but got `machine.checkpointing`"),
        ("resnet20:width=4", 7, {}, "but got batches of 7"),
        ("mlp", 8, {}, "but got no convolution of images"),
    ],
)
def test_a_run_that_cannot_be_widened_is_refused_before_it_begins(
    model: str, batch: int, machine: dict[str, Any], told: str, tmp_path: Path
) -> None:
    config = images(tmp_path, widen="on", **machine)
    recipe = dataclasses.replace(config.recipe, batch_size=batch)
    config = dataclasses.replace(config, model=model, recipe=recipe)
    with pytest.raises(InputError) as problem:
        train(config, tmp_path / "run", report=lambda _: None)
    assert told in str(problem.value)
    assert not (tmp_path / "run").exists()
