"""The losses as they are used: compiled, in mixed precision, on a GPU, in a captured graph.

Needs torch and pytest alone, so that it also runs on a training machine:
``pytest --noconftest tests/losses/test_devices.py``.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from flipguard.losses import __all__ as exported
from tests.losses.cases import CASES, CLASSES, Batch, value_and_gradient

CUDA = torch.cuda.is_available()
DEVICES = ["cpu", *(["cuda"] if CUDA else [])]
gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


def test_no_loss_was_forgotten():
    shown = {type(case(Batch())[0]).__name__ for case in CASES.values()}
    terms = {
        name
        for name in exported
        if isinstance(getattr(__import__("flipguard.losses", fromlist=[name]), name), type)
        and issubclass(getattr(__import__("flipguard.losses", fromlist=[name]), name), nn.Module)
    }
    assert shown == terms - {"BayesianUpdate"}  # which decides, and has no gradient


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_it_compiles_into_one_graph(name, device):
    """A break in the graph would be a host synchronisation or a shape that depends on values."""
    batch = Batch(device)
    term, inputs = CASES[name](batch)
    value, gradient = value_and_gradient(term, batch, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler about the machine
        torch.compiler.reset()
        # On the CPU the slow part, C++, is left out; the graph is the same.
        backend = "inductor" if device == "cuda" else "aot_eager"
        compiled = torch.compile(term, fullgraph=True, backend=backend)
        again, slope = value_and_gradient(compiled, batch, inputs)
    torch.testing.assert_close(again, value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(slope, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_compiles_to_machine_code(name):
    batch = Batch()
    term, inputs = CASES[name](batch)
    value, gradient = value_and_gradient(term, batch, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compiler.reset()
        term.compile(fullgraph=True)
        again, slope = value_and_gradient(term, batch, inputs)
    torch.testing.assert_close(again, value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(slope, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_every_device_gives_what_double_precision_gives(name, device):
    exact_batch, batch = Batch(dtype=torch.float64), Batch(device)
    exact_term, exact_inputs = CASES[name](exact_batch)
    exact, exact_gradient = value_and_gradient(exact_term.double(), exact_batch, exact_inputs)
    term, inputs = CASES[name](batch)
    value, gradient = value_and_gradient(term, batch, inputs)
    torch.testing.assert_close(value.cpu().double(), exact, rtol=2e-4, atol=1e-6)
    torch.testing.assert_close(gradient.cpu().double(), exact_gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_under_autocast_it_computes_in_single_precision(name, half, device):
    """Logits come out of an autocast layer in half precision; the loss of them does not."""
    torch.manual_seed(0)
    layer = nn.Linear(CLASSES, CLASSES).to(device)
    start = Batch(device)
    with torch.autocast(device, dtype=half):
        batch = Batch(device)
        batch.new = layer(start.new.detach())
        assert batch.new.dtype == half
        term, inputs = CASES[name](batch)
        value = term(**inputs)
    assert value.dtype == torch.float32
    (value * 1024).backward()  # as a gradient scaler would
    # The same numbers, given in single precision and outside autocast.
    plain = Batch(device)
    plain.new = batch.new.detach().float().requires_grad_()
    term, inputs = CASES[name](plain)
    expected, _ = value_and_gradient(term, plain, inputs)
    torch.testing.assert_close(value.detach(), expected, rtol=1e-4, atol=1e-6)
    assert layer.weight.grad is not None
    assert torch.isfinite(layer.weight.grad).all()
    assert layer.weight.grad.abs().sum() > 0


@gpu
@pytest.mark.parametrize("name", CASES)
def test_no_step_waits_for_the_device(name):
    batch = Batch("cuda")
    term, inputs = CASES[name](batch)
    value_and_gradient(term, batch, inputs)  # index tensors reach the device once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        value_and_gradient(term, batch, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu
@pytest.mark.parametrize("name", CASES)
def test_a_captured_graph_replays_on_other_numbers(name):
    batch = Batch("cuda")
    term, inputs = CASES[name](batch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            value_and_gradient(term, batch, inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, gradient = value_and_gradient(term, batch, inputs)
    with torch.no_grad():
        batch.new.mul_(-0.5).add_(batch.old.roll(1, 0))
        inputs = {
            key: batch.new if tensor is batch.new else tensor for key, tensor in inputs.items()
        }
        batch.target.copy_(batch.target.roll(3))
    graph.replay()
    torch.cuda.synchronize()
    captured, slope = value.clone(), gradient.clone()
    expected, expected_slope = value_and_gradient(term, batch, inputs)
    torch.testing.assert_close(captured, expected)
    torch.testing.assert_close(slope, expected_slope)
