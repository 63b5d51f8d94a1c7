"""`flipguard demo`."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flipguard.cli.output import line, show, typed
from flipguard.cli.progress import progress
from flipguard.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from flipguard.comparison import Comparison
    from flipguard.gate import Verdict

NEEDED = (
    ("torch", "torch", "train"),
    ("jinja2", "jinja2", "report"),
    ("vl_convert", "vl-convert-python", "report"),
    ("PIL", "pillow", "report"),
)
PAGE, SAMPLES = "report.html", "samples.npz"
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for runs, policy and report.")
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo_command)


def demo_command(out: Out = Path("flipguard-demo"), seed: Seed = 0) -> None:
    """Train several updates on generated data, compare and judge them, and write a report.

    Example: [bold]flipguard demo[/bold]
    """
    for module, package, extra in NEEDED:
        if find_spec(module) is None:
            raise MissingExtraError("The demo", package=package, extra=extra)
    from flipguard.demo import CONTROL, POLICY, judge_updates, tasks, train_all, update_lines
    from flipguard.files import replacing
    from flipguard.render.terminal import candidate_parts

    began = time.monotonic()
    runs, policy = out / "runs", out / "gate.toml"
    _refuse_others(out, policy, POLICY)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with replacing(policy) as temporary:
            temporary.write_text(POLICY)
    except OSError as problem:
        raise InputError(
            f"Expected to write to {out}, but could not ({problem.strerror}); choose another "
            "`--out`."
        ) from problem
    plan = tasks(runs, seed=seed)
    line(f"A larger net is to replace a small one, on MNIST-1D. Training {len(plan)} models:")
    for told_of in update_lines():
        line(f"  {told_of}")
    with progress("training") as text:
        train_all(plan, progress=text)
    updates = judge_updates(runs, policy)
    results = {update.name: update.comparison for update in updates}
    verdicts = {update.name: update.verdict for update in updates}
    old = results[CONTROL]["error_rate_old"].value
    line(
        f"Done in {time.monotonic() - began:.0f} s. The old model is wrong on {100 * old:.1f} % of "
        f"{results[CONTROL].n:,} test samples.\nThe updates, with 95 % intervals:\n"
    )
    show(candidate_parts(results, verdicts, control=CONTROL), stdout_taken=False)
    _write_page(out, runs, results, verdicts)
    line(
        f"\n{out}/report.html   the report: what breaks, sample by sample\n"
        f"{out}/gate.toml     the policy of the gate\n"
        f"{out}/runs/         every run: weights, predictions, history\n\n"
        "Next, with your own predictions: flipguard compare OLD NEW, and flipguard gate OLD NEW\n"
        "--policy FILE. To train with your own data: flipguard train --help."
    )


def _refuse_others(out: Path, policy: Path, own: str) -> None:
    """Refuse a folder with a policy or a report that was not written by a demo."""
    try:
        ours = policy.read_text() == own if policy.exists() else None
        taken = [out / name for name in (PAGE, SAMPLES) if (out / name).exists()]
    except (OSError, ValueError):
        return  # a file that cannot be read is reported when it cannot be written
    foreign = [policy] if ours is False else taken if ours is None else []
    if foreign:
        raise InputError(
            f"Expected {out} to be a new folder or that of an earlier demo, but {foreign[0]} is "
            "not from a demo and would be overwritten; choose another `--out`."
        )


def _write_page(
    out: Path,
    runs: Path,
    results: dict[str, Comparison],
    verdicts: dict[str, Verdict],
) -> None:
    from flipguard.demo import write_samples
    from flipguard.report.write import write_report

    samples = out / SAMPLES
    write_samples(samples)
    write_report(
        results,
        out / PAGE,
        verdict=verdicts,
        samples=samples,
        samples_budget="6MB",
        runs=[runs / name for name in results],
        title="Three updates of an MNIST-1D classifier",
        command=typed(),
    )
