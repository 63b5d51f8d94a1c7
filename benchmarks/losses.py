"""What each loss costs: forward and backward, against its bare formula, eager and compiled.

    python benchmarks/losses.py --device cuda

Times are microseconds a call, the best of several rounds in which all contenders take turns.
`captured` is the time of a replayed CUDA graph: the device's work, without launching it. Memory is
what a call allocates at its peak beyond its inputs, gradient included, in units of the logits.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard import losses

RESULTS = Path(__file__).resolve().parent / "results"
Step = Callable[[], Tensor]


class Inputs:
    """A batch of logits: new's with a gradient, old's without."""

    def __init__(self, samples: int, classes: int, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.new = torch.randn(samples, classes, device=device).mul_(3).to(dtype).requires_grad_()
        self.old = (self.new.detach() + torch.randn(samples, classes, device=device)).to(dtype)
        self.peer = self.old.clone().requires_grad_()
        self.target = torch.where(
            torch.rand(samples, device=device) < 0.7,
            self.old.argmax(-1),
            torch.randint(classes, (samples,), device=device),
        )


# The bare formulas: what one writes down from the papers, without checks, filters or class maps.


def bare_naive(x: Inputs) -> Tensor:
    right = (x.old.argmax(-1) == x.target).float()
    return (F.cross_entropy(x.new.float(), x.target, reduction="none") * right).mean()


def bare_fd_lm(x: Inputs) -> Tensor:
    weight = 1 + 5 * (x.old.argmax(-1) == x.target).float()
    return (weight * 0.5 * (x.new.float() - x.old.float()).pow(2).mean(-1)).mean()


def bare_fd_kl(x: Inputs, temperature: float = 100.0) -> Tensor:
    weight = 1 + 5 * (x.old.argmax(-1) == x.target).float()
    return (weight * _bare_kl(x, temperature)).mean()


def _bare_kl(x: Inputs, temperature: float) -> Tensor:
    log_q = F.log_softmax(x.new.float() / temperature, -1)
    log_p = F.log_softmax(x.old.float() / temperature, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1) * temperature**2


def bare_kd(x: Inputs) -> Tensor:
    return _bare_kl(x, 4.0).mean()


def bare_ldi(x: Inputs) -> Tensor:
    top = x.new.topk(10, -1).indices
    difference = x.new.gather(-1, top).float() - x.old.gather(-1, top).float()
    return difference.pow(2).mean(-1).mean()


def bare_ldi_all(x: Inputs) -> Tensor:
    return (x.new.float() - x.old.float()).pow(2).mean(-1).mean()


def bare_entropy(x: Inputs) -> Tensor:
    log_p = F.log_softmax(x.new.float(), -1)
    return -(log_p.exp() * log_p).sum(-1).mean()


def bare_entropy_top(x: Inputs) -> Tensor:
    log_p = F.log_softmax(x.new.float(), -1).topk(10, -1).values
    return -(log_p.exp() * log_p).sum(-1).mean()


def bare_uniform(x: Inputs) -> Tensor:
    log_p = F.log_softmax(x.new.float(), -1)
    return ((log_p.exp() - 1 / log_p.shape[-1]) * log_p).sum(-1).mean()


def bare_uniform_top(x: Inputs) -> Tensor:
    log_p = F.log_softmax(x.new.float(), -1).topk(10, -1).values
    classes = x.new.shape[-1]
    return ((log_p.exp() - 1 / classes) * (log_p + torch.log(torch.tensor(classes)))).sum(-1).mean()


def bare_codistill_skl(x: Inputs) -> Tensor:
    log_p, log_q = F.log_softmax(x.new.float(), -1), F.log_softmax(x.peer.float(), -1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1).mean()


def bare_codistill_ce(x: Inputs) -> Tensor:
    return -(F.softmax(x.old.float(), -1) * F.log_softmax(x.new.float(), -1)).sum(-1).mean()


def bare_strict_imitation(x: Inputs) -> Tensor:
    right = (x.old.argmax(-1) == x.target).float()
    row = -(F.softmax(x.old.float(), -1) * F.log_softmax(x.new.float(), -1)).sum(-1)
    return (right * row).mean()


def bare_muscle(x: Inputs) -> Tensor:
    wrong = (x.new.argmax(-1) != x.target).float()
    return (wrong * _bare_kl(x, 1.0)).mean()


def bare_ract(x: Inputs) -> Tensor:
    new, old = F.normalize(x.new.float(), dim=-1), F.normalize(x.old.float(), dim=-1)
    own = (new * old).sum(-1, keepdim=True) / 0.05
    same = x.target[:, None] == x.target[None]
    to_old = ((new @ old.T) / 0.05).masked_fill(same, -1e9)
    to_new = ((new @ new.T) / 0.05).masked_fill(same, -1e9)
    return (torch.cat([own, to_old, to_new], -1).logsumexp(-1) - own[:, 0]).mean()


def _with_old(term: nn.Module) -> Callable[[Inputs], Tensor]:
    return lambda x: term(new=x.new, old=x.old, target=x.target)


def _with_reference(term: nn.Module) -> Callable[[Inputs], Tensor]:
    return lambda x: term(new=x.new, reference=x.old)


def _alone(term: nn.Module) -> Callable[[Inputs], Tensor]:
    return lambda x: term(new=x.new)


Contender = tuple[Callable[[Inputs], Tensor], Callable[[Inputs], Tensor]]

# name: (ours, bare)
LOSSES: dict[str, Contender] = {
    "naive": (_with_old(losses.NaiveCongruence()), bare_naive),
    "fd-lm": (_with_old(losses.FocalDistillation()), bare_fd_lm),
    "fd-kl": (_with_old(losses.FocalDistillation(distance="kl")), bare_fd_kl),
    "kd": (_with_reference(losses.KnowledgeDistillation(temperature=4.0)), bare_kd),
    "ldi": (_with_reference(losses.LogitDifferenceInhibition()), bare_ldi),
    "ldi-all": (_with_reference(losses.LogitDifferenceInhibition(k=None)), bare_ldi_all),
    "entropy": (_alone(losses.EntropyRegularizer()), bare_entropy),
    "entropy-top": (_alone(losses.EntropyRegularizer(k=10)), bare_entropy_top),
    "uniform": (_alone(losses.UniformDivergence()), bare_uniform),
    "uniform-top": (_alone(losses.UniformDivergence(k=10)), bare_uniform_top),
    "codistill-skl": (
        lambda x: losses.codistillation(first=x.new, second=x.peer),
        bare_codistill_skl,
    ),
    "codistill-ce": (
        lambda x: losses.codistillation(first=x.new, second=x.old, kind="ce"),
        bare_codistill_ce,
    ),
    "strict-imitation": (_with_old(losses.StrictImitation()), bare_strict_imitation),
    "muscle": (_with_old(losses.Muscle()), bare_muscle),
    "ract": (
        lambda x: losses.regression_alleviating(
            new_features=x.new, old_features=x.old, target=x.target
        ),
        bare_ract,
    ),
}


def stepper(loss: Callable[[Inputs], Tensor], x: Inputs) -> Step:
    """Forward and backward; the gradient is handed out and dropped."""
    wanted = [x.new, x.peer] if "codistill_skl" in getattr(loss, "__name__", "") else [x.new]

    def step() -> Tensor:
        value = loss(x)
        return torch.autograd.grad(value, wanted, allow_unused=True)[0]

    return step


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(steps: dict[str, Step], device: str, *, rounds: int, calls: int) -> dict[str, float]:
    """Microseconds a call, the best round of each; contenders take turns."""
    best = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        for _ in range(5):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            for _ in range(calls):
                step()
            synchronize(device)
            best[name] = min(best[name], (time.perf_counter() - start) / calls * 1e6)
    return {name: round(value, 1) for name, value in best.items()}


def captured(step: Step) -> Step:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    kept = []
    with torch.cuda.graph(graph):
        kept.append(step())

    def replay() -> Tensor:
        graph.replay()
        return kept[0]

    return replay


def peak(step: Step, x: Inputs, both: bool) -> float:
    """The peak of a call's allocations, in units of the logits that get a gradient."""
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    # Asked for, not handed out: a cached block may be a little larger than what it is used for.
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    gradient = step()
    torch.cuda.synchronize()
    used = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    del gradient
    return round(used / (x.new.numel() * x.new.element_size() * (2 if both else 1)), 2)


def measure(
    name: str, x: Inputs, device: str, *, rounds: int, calls: int, seconds: float
) -> dict[str, object]:
    """One row of the table."""
    ours, bare = LOSSES[name]
    both = name == "codistill-skl"
    if both:
        ours.__name__ = "codistill_skl"
    torch.compiler.reset()
    # The batch lies in globals of the compiled function, as tensors of a captured step would.
    eager = {"ours": stepper(ours, x), "bare": stepper(bare, x)}
    compiled = {}
    for who, loss in (("ours", ours), ("bare", bare)):
        fused = torch.compile(loss, fullgraph=True)
        if both:
            fused.__name__ = "codistill_skl"
        compiled[f"{who} compiled"] = stepper(fused, x)
    steps = eager | compiled
    if x.new.dtype == torch.float32:  # in half precision ties are many, and top-k may pick others
        first = eager["ours"]()
        torch.testing.assert_close(first, eager["bare"](), rtol=5e-3, atol=1e-5)
        torch.testing.assert_close(first, compiled["ours compiled"](), rtol=5e-3, atol=1e-5)
    start = time.perf_counter()
    eager["ours"]()
    synchronize(device)
    once = max(time.perf_counter() - start, 1e-5)
    calls = max(min(calls, int(seconds / once / rounds)), 3)
    row: dict[str, object] = {
        "loss": name,
        "samples": x.new.shape[0],
        "classes": x.new.shape[1],
        "dtype": str(x.new.dtype).removeprefix("torch."),
        "microseconds": timed(steps, device, rounds=rounds, calls=calls),
    }
    if device == "cuda":
        graphs = {who: captured(step) for who, step in steps.items()}
        row["captured"] = timed(graphs, device, rounds=rounds, calls=calls)
        del graphs
        row["peak"] = {who: peak(step, x, both) for who, step in steps.items()}
    return row


def machine(device: str) -> dict[str, object]:
    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        names = subprocess.run(["lscpu"], capture_output=True, text=True).stdout.splitlines()
        name = next((n.split(":")[1].strip() for n in names if "Model name" in n), "CPU")
        name = f"{torch.get_num_threads()} threads of {name}"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}


def show(document: dict[str, object]) -> None:
    print(
        f"{'loss':18} {'size':>12} {'dtype':9} {'ours':>8} {'compiled':>9} {'bare':>8} "
        f"{'compiled':>9} {'ratio':>6} {'fused':>6} {'graph':>7} {'bare':>7} {'peak':>5}"
    )
    for row in document["rows"]:
        t, g, m = row["microseconds"], row.get("captured", {}), row.get("peak", {})
        fused = t["bare compiled"]
        print(
            f"{row['loss']:18} {row['samples']:>5}x{row['classes']:<6} {row['dtype']:9} "
            f"{t['ours']:8.1f} {t['ours compiled']:9.1f} {t['bare']:8.1f} {fused:9.1f} "
            f"{t['ours'] / fused:6.2f} {t['ours compiled'] / fused:6.2f} "
            f"{g.get('ours', 0):7.1f} {g.get('bare compiled', 0):7.1f} {m.get('ours', 0):5.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--many-classes", type=int, default=21_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3.0, help="at most so long a contender")
    parser.add_argument("--only", nargs="*", default=list(LOSSES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    rows = []
    sizes = [(name, options.classes, torch.float32) for name in options.only]
    sizes += [(n, options.classes, torch.bfloat16) for n in ("fd-lm", "fd-kl") if n in options.only]
    many = [n for n in ("ldi", "ldi-all", "entropy", "entropy-top") if n in options.only]
    for dtype in (torch.float32, torch.bfloat16):
        sizes += [(name, options.many_classes, dtype) for name in many]
    for name, classes, dtype in sizes:
        x = Inputs(options.samples, classes, options.device, dtype)
        rows.append(
            measure(
                name,
                x,
                options.device,
                rounds=options.rounds,
                calls=options.calls,
                seconds=options.seconds,
            )
        )
        print(json.dumps(rows[-1]), flush=True)
    document = {
        "command": f"python benchmarks/losses.py --device {options.device}",
        "machine": machine(options.device),
        "rows": rows,
    }
    path = options.out or RESULTS / f"losses-{options.device}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    show(document)


if __name__ == "__main__":
    main()
