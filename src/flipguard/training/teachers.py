"""Use finished members as the teachers of a student: their mean logits, computed in one pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.utils.fusion import fuse_conv_bn_eval

from flipguard.acceleration.regions import Compiling, compile_parts
from flipguard.errors import InputError
from flipguard.fusion.conversion import fuse
from flipguard.fusion.fused import Fused
from flipguard.fusion.operation import NotFusable
from flipguard.fusion.packed import traced_member
from flipguard.fusion.tuning import tune
from flipguard.models import Inputs
from flipguard.references import Ensemble, OldModel, Reference
from flipguard.runs.config import Config, Machine
from flipguard.runs.folder import Run
from flipguard.training.checkpoint import load_model, of_its_size
from flipguard.training.devices import input_type, to_device
from flipguard.training.fused_group import APART, fills_gpu, fuses


def fold_batch_norm(member: nn.Module, example: Tensor) -> nn.Module:
    """Return a copy in eval mode, with normalisations folded into convolutions where possible.

    If the network cannot be traced, it is a plain copy.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    >>> [type(layer).__name__ for layer in fold_batch_norm(net, torch.zeros(2, 3, 5, 5)).children()]
    ['Conv2d', 'ReLU']
    """
    try:
        net = traced_member(member, example, training=False)
    except NotFusable:
        return copy.deepcopy(member).eval()
    layers = dict(net.named_modules(remove_duplicate=False))
    calls = [str(node.target) for node in net.graph.nodes if node.op == "call_module"]
    for node in list(net.graph.nodes):
        if node.op != "call_module" or type(layers[node.target]) is not nn.BatchNorm2d:
            continue
        norm, before = layers[node.target], node.args[0]
        if before.op != "call_module" or len(before.users) != 1:
            continue
        convolution = layers[before.target]
        once = calls.count(before.target) == 1 and calls.count(node.target) == 1
        if type(convolution) is not nn.Conv2d or not once or norm.running_mean is None:
            continue
        # In float64, so that only the final product is rounded.
        kind, laid = convolution.weight.dtype, convolution.weight
        exact = fuse_conv_bn_eval(copy.deepcopy(convolution).double(), copy.deepcopy(norm).double())
        exact = exact.to(kind)
        exact.weight.data = torch.empty_like(laid).copy_(exact.weight.data)  # as it lay in memory
        parent, _, name = before.target.rpartition(".")
        net.get_submodule(parent).add_module(name, exact)
        layers[before.target] = exact
        node.replace_all_uses_with(before)
        net.graph.erase_node(node)
    answering = GraphModule(net, net.graph, type(member).__name__)
    answering.recompile()
    return answering.eval()


class FusedMean(nn.Module):
    """The mean of fused members' logits, each divided by its temperature.

    The sum is in float32 (float64 if the logits are), as in `Ensemble`.
    """

    shares: Tensor

    def __init__(self, fused: Fused, temperatures: Sequence[float] | None = None) -> None:
        super().__init__()
        self.fused = fused
        given = temperatures or (1.0,) * fused.count
        shares = torch.tensor([1 / (fused.count * one) for one in given], dtype=torch.float64)
        self.register_buffer("shares", shares, persistent=False)

    def forward(self, inputs: Inputs) -> Tensor:
        logits = self.fused(inputs)
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        weighted: Tensor = logits.to(wide) * self.shares.to(wide).view(-1, 1, 1)
        return weighted.sum(0)


def teachers(
    members: Sequence[nn.Module],
    *,
    example: Tensor | None = None,
    temperatures: Sequence[float] | None = None,
    streams: int = 1,
    apart: bool = False,
    compiled: Compiling = "off",
    batch_size: int | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Reference:
    """Return the members' mean logits as a reference, with their normalisations folded.

    With several streams, a GPU computes several members at the same time; if they are `apart`, each
    is a separate network. If `batch_size` is given, the fastest way is measured on a GPU, with the
    precision of `autocast`.

    >>> from flipguard.models import build_model
    >>> members = [build_model("conv2d", classes=10, input_shape=(8, 8), seed=i) for i in range(4)]
    >>> teachers(members)(torch.zeros(5, 8, 8)).shape
    torch.Size([5, 10])
    """
    shape = getattr(members[0], "input_shape", None) if example is None else example.shape[1:]
    plain = (
        [fold_batch_norm(member, _batch(member, shape)) for member in members] if shape else members
    )
    batch = None if shape is None else torch.zeros(1, *shape)
    networks = len(plain) if apart else streams
    fused = fuse(plain, example=batch, streams=streams, networks=networks)
    if apart and fused.way != "packed":
        raise InputError(
            "Expected networks of convolutions or of plain layers to be computed on several "
            "streams, but got some whose calls are mapped; compute them in turn."
        )
    fused = fused.eval().requires_grad_(False)
    mean = FusedMean(fused, temperatures).to(_device(members[0]))
    if batch_size is not None and shape is not None:
        tune(fused, torch.zeros(batch_size, *shape, device=_device(members[0])), autocast)
    if compiled == "parts":
        compile_parts(fused)
    elif compiled == "whole":
        mean.compile()
    return OldModel(mean)


def _batch(member: nn.Module, shape: Sequence[int]) -> Tensor:
    kind = next((p.dtype for p in member.parameters()), torch.float32)
    return torch.zeros(2, *shape, device=_device(member), dtype=kind)


def _device(member: nn.Module) -> torch.device:
    return next((p.device for p in member.parameters()), torch.device("cpu"))


class TeacherLayout(NamedTuple):
    """How teachers are computed: on how many streams, and as one network or each by itself."""

    streams: int = 1
    apart: bool = False


def teacher_layout(
    machine: Machine, device: torch.device, models: Sequence[nn.Module]
) -> TeacherLayout | None:
    """Return how models are computed together; None if they are computed one after the other."""
    if len(models) < 2 or not fuses(machine, device):
        return None
    # A network that is compiled as a whole runs on one stream.
    streams = 1 if machine.compile == "whole" else machine.streams
    if machine.fuse == "on" or not fills_gpu(models[0]):
        return TeacherLayout(streams or 1)
    return None if streams == 1 else TeacherLayout(streams or APART, apart=True)


def load_teachers(
    runs: Sequence[Run],
    config: Config,
    fabric: Any,
    held_out: Callable[[], Iterable[Any]] | None,
    *,
    input_shape: Sequence[int] | None = None,
) -> Callable[[], Reference]:
    """Return a function that loads the ensemble of finished members.

    The ensemble is calibrated if `held_out` is given. Members of another size than `input_shape`,
    that of the batches, resize their inputs.
    """
    machine, device = config.machine, fabric.device
    shape = runs[0].input_shape if input_shape is None else tuple(input_shape)

    def load() -> Reference:
        models = [
            to_device(of_its_size(load_model(run, machine), run, shape).eval(), device)
            for run in runs
        ]
        ensemble = Ensemble(models)
        if held_out is not None:
            ensemble = ensemble.calibrate(held_out())
        layout = teacher_layout(machine, device, models)
        if layout is None:
            return ensemble
        example = None if shape is None else torch.zeros(1, *shape, dtype=input_type(machine))
        try:
            return teachers(
                models,
                example=example,
                temperatures=ensemble.temperatures,
                streams=layout.streams,
                apart=layout.apart,
                compiled=machine.compile,
                # Measuring may choose other kernels every time.
                batch_size=None if machine.deterministic else config.recipe.batch_size,
                autocast=fabric.autocast,
            )
        except InputError:
            return ensemble  # it has several architectures, or one that cannot be fused

    return load
