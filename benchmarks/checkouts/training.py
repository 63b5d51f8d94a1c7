"""The cases that train: methods alone, members, stopped runs, processes, fine-tuning, studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from checkouts.case import Case, words

DATA = "--data mnist1d:train=600,test=200 --model mlp:hidden=8"
TINY = f"{DATA} --set recipe.epochs=2 --set machine.threads=1"
THREE = f"{DATA} --set recipe.epochs=3 --set machine.threads=1"
OLD = "--old {setup}/old"
STOP = "--set machine.minutes=1e-9"

# Values of options to try, next to the defaults: for each method, one run per entry.
OPTIONS: Mapping[str, Sequence[str]] = {
    "dropout": ["rate=0.4", "preset=paper"],
    "naive": ["weight=0.3"],
    "kd": ["direction=reverse", "t_squared=false", "temperature=2", "weight=0.2"],
    "fd-kl": ["direction=reverse", "t_squared=false", "base=0 focus=2", "preset=paper"],
    "fd-lm": [
        *("class_reduction=sum", "filter=all", "filter=new_wrong", "filter=negative_flip"),
        *("base=0.5 focus=1 weight=0.3", "preset=paper"),
    ],
    "bct": ["weight=0.3"],
    "ract": ["weight=4", "temperature=0.5"],
    "bu-cr": ["cost_ratio=5"],
    "entropy": ["alpha=0.4", "k=3"],
    "skl": ["alpha=0.2", "k=3", "floor=1e-3", "preset=paper"],
    "codistill-ce": ["beta=1", "burn_in=0", "every=2 burn_in=0 beta=1"],
    "codistill-skl": ["beta=1", "ramp=0", "plus=entropy beta=1", "plus=skl alpha=0.3", "floor=0"],
    "new-error": ["weight=0.3"],
    "strict-imitation": ["weight=0.3"],
    "muscle": ["temperature=4", "weight=0.3"],
    "l2-sp": ["strength=1"],
    "ewc": ["strength=0.1", "samples=50"],
    "mixout": ["share=0.9"],
    "label-mix": ["share=0.2"],
}
MEMBERS: Mapping[str, Sequence[str]] = {
    "ensemble": [""],
    "elodi": [
        *("", "k=3", "k=3 rank_by=reference", "k=3 rank_by=both", "p=1", "class_reduction=sum"),
        *("online=false", "guide=calibrated", "alpha=0.3", "preset=paper"),
        *("views=2", "views=1 views_top=3 views_dtype=float32"),
    ],
}
RECIPES = (
    *("optimizer=sgd", "optimizer=sgd nesterov=false momentum=0.5 weight_decay=0.1"),
    *("schedule=constant", "schedule=linear warmup=0.5", "schedule=steps milestones=[1] decay=0.5"),
    *("label_smoothing=0.1", "augment=shift-scale-noise", "accumulate=3", "linear_scaling=256"),
    *("clip=0.05", "clip=0.05 accumulate=2", "batch_size=77", "accumulate=2 batch_size=77"),
)
SETTINGS = (
    *("scope.samples=0.5", "scope.classes=6", "scope.samples=0.5 scope.seed=4"),
    *("machine.precision=64-true", "machine.precision=bf16-mixed", "machine.deterministic=true"),
    *("machine.measure_every=2", "machine.save_seconds=0"),
    *("seeds.init=5", "seeds.order=5", "seeds.augment=5", "seeds.dropout=5"),
)
MODELS = (
    *("mlp:hidden=12,depth=3,dropout=0.2", "conv1d:width=5", "conv1d:width=5,dropout=0.3"),
    "python:nowhere:net",
)


def setup_cases() -> Iterator[Case]:
    """Runs that other cases start from or follow."""
    for name, more in {
        "old": "--seed 1",
        "second": "--seed 2",
        "third": "--seed 3 --model mlp:hidden=12",
        "deep": "--seed 4",
        "fewer": "--seed 5 --set scope.classes=6",
        "part": "--seed 7 --set scope.samples=0.9",
        "other-part": "--seed 8 --set scope.samples=0.9",
        "parent": "--seed 6 --method elodi --set options.members=3 --fuse off",
    }.items():
        command = words(f"train --out ../{name} {TINY} {more}")
        yield Case(part="setup", name=f"{name}-command", commands=(command,), quick=True)


def train_cases(methods: Sequence[Mapping[str, Any]]) -> Iterator[Case]:
    """Every method alone, every cheap choice of its options, recipes, models and data."""
    for method in methods:
        name, needs = method["name"], method["needs"]
        if "members" in needs:
            continue
        base = f"train --out run --method {name} {TINY} {OLD if 'old' in needs else ''}"
        yield _one("train", name, base, quick=True)
        for place, values in enumerate(OPTIONS.get(name, ()), start=1):
            yield _one("train", f"{name}-{place}", f"{base} {_sets(values, 'options.')}")
        if "old" in needs:
            yield _one("train", f"{name}-shaken", f"{base} --set recipe.augment=shift-scale-noise")
            fewer = base.replace(OLD, "--old {setup}/fewer")
            yield _one("train", f"{name}-classes", fewer)
            if "one_old" not in needs:
                yield _one("train", f"{name}-two", f"{base} --old {{setup}}/third")
    base = f"train --out run {TINY}"
    for place, values in enumerate(RECIPES, start=1):
        yield _one("train", f"recipe-{place}", f"{base} {_sets(values, 'recipe.')}")
        follows = f"{base} --method fd-kl {OLD} {_sets(values, 'recipe.')}"
        yield _one("train", f"recipe-{place}-fd-kl", follows)
    for place, values in enumerate(SETTINGS, start=1):
        more = f"{_sets(values, '')} --set recipe.augment=shift-scale-noise"
        yield _one("train", f"setting-{place}", f"{base} {more}")
        yield _one("train", f"setting-{place}-codistill", f"{base} --method codistill-skl {more}")
    for place, model in enumerate(MODELS, start=1):
        yield _one("train", f"model-{place}", f"{base} --model {model}")
    yield _one("train", "fix", f"{base} --fix init,order,hardware --seed 8")
    yield from _data_cases(base)
    yield from _wrong_cases(base)
    yield _run_tables()


def _data_cases(base: str) -> Iterator[Case]:
    for place, (data, model, more) in enumerate(
        [
            ("vectors.npz", "mlp:hidden=8", ""),
            ("vectors.npz:test=0.4,seed=2", "mlp:hidden=8", ""),
            ("pixels.npz", "conv2d:width=4", "--set recipe.augment=crop-flip:padding=1"),
            ("pixels.npz", "resnet9:width=4", "--set recipe.augment=cutout:size=3"),
            ("pixels.npz", "resnet20:width=4", "--set recipe.augment=alternating-flip"),
            ("pixels.npz", "conv2d:width=4", "--set recipe.augment=random-resized-crop"),
            ("pixels.npz", "resnet20:width=4", "--set machine.checkpointing=true"),
        ],
        start=1,
    ):
        yield _one("train", f"data-{place}", f"{base} --data {{in}}/{data} --model {model} {more}")


def _run_tables() -> Case:
    """Predictions and reports of runs."""
    return Case(
        part="train",
        name="tables",
        quick=True,
        commands=(
            words("predict {setup}/old --split train --out train.npz"),
            words("predict {setup}/old --split test --out test.parquet"),
            words("predict {setup}/third --out test.csv"),
            words("report {setup}/second {setup}/third --old {setup}/old --out report.html"),
            words(
                "report {setup}/parent {setup}/second --old {setup}/old --out r2.html --by target"
            ),
            words("predict {setup}/nowhere --out test.csv"),
        ),
    )


def _wrong_cases(base: str) -> Iterator[Case]:
    for place, wrong in enumerate(
        [
            *("--method nothing", "--method kd", "--set recipe.epochs=0", "--set recipe.epoch=3"),
            *("--model mlp:hiden=3", "--data nowhere.npz", "--old nowhere", "--set a", "--fix all"),
            *(
                "--method kd --old {setup}/old --set options.wait=1",
                "--resume",
                "--config none.toml",
            ),
            *("--method bct --old {setup}/old --old {setup}/second", "--set recipe.optimizer=best"),
            *("--method l2-sp --old {setup}/third", "--method elodi --set options.members=1"),
            *("--set machine.precision=8-bit", "--set recipe.learning_rate=1e30"),
            *("--method elodi --set options.reuse=2", "--set recipe.augment=cutout"),
        ],
        start=1,
    ):
        yield _one("train", f"wrong-{place}", f"{base} {wrong}", quick=place < 5)


def member_cases() -> Iterator[Case]:
    """Ensembles: as one network, in streams, in a pool, one by one; reused, given, stored."""
    for method, choices in MEMBERS.items():
        for place, values in enumerate(choices):
            base = f"train --out run --method {method} {TINY} --set options.members=3"
            base += f" {_sets(values, 'options.')}"
            for fuse in ("on", "off") if place < 2 or "guide" in values else ("on",):
                name = f"{method}-{place}-{fuse}"
                yield _one("members", name, f"{base} --fuse {fuse}", quick=place == 0)
    base = f"train --out run --method elodi {TINY} --set options.members=3"
    for name, more in {
        "auto": "",
        "chunks": "--fuse on --set machine.fuse_chunk=2",
        "streams": "--fuse on --set machine.streams=2",
        "shared": "--fuse on --set recipe.member_order=shared",
        "shared-off": "--fuse off --set recipe.member_order=shared",
        "clip": "--fuse on --set recipe.clip=0.05",
        "clip-off": "--fuse off --set recipe.clip=0.05",
        "sgd": "--fuse on --set recipe.optimizer=sgd --set recipe.accumulate=2",
        "dropout": "--fuse on --model mlp:hidden=8,dropout=0.3",
        "conv": "--fuse on --model conv1d:width=5,dropout=0.2",
        "shaken": "--fuse on --set recipe.augment=shift-scale-noise",
        "shaken-off": "--fuse off --set recipe.augment=shift-scale-noise",
        "double": "--fuse on --set machine.precision=64-true",
        "mixed": "--fuse on --set machine.precision=bf16-mixed",
        "legacy": "--fuse on --set options.legacy=0.5 --old {setup}/old",
        "legacy-off": "--fuse off --set options.legacy=0.5 --old {setup}/old",
        "reuse": "--fuse on --set options.reuse=2 --old {setup}/parent",
        "reuse-off": "--fuse off --set options.reuse=1 --old {setup}/parent",
        "fine-tuned": "--fuse on --set fine_tune=true --old {setup}/old",
        "fine-tuned-off": "--fuse off --set fine_tune=true --old {setup}/old",
        "views": "--fuse on --set options.views=2 --set recipe.augment=shift-scale-noise",
        "views-off": "--fuse off --set options.views=2 --set options.views_top=4 "
        "--set recipe.augment=shift-scale-noise",
        "pixels": "--fuse on --data {in}/pixels.npz --model resnet9:width=4",
    }.items():
        yield _one("members", name, f"{base} {more}", quick=name in ("reuse", "views", "streams"))
    given = '["{setup}/old", "{setup}/second", "{setup}/third"]'
    guided = f"train --out run --method elodi {TINY} --set 'guides={given}'"
    yield _one("members", "guides", f"{guided} --set options.guide=heterogeneous", quick=True)
    parts = guided.replace(given, '["{setup}/part", "{setup}/other-part"]')
    yield _one("members", "guides-calibrated", f"{parts} --set options.guide=calibrated")
    yield _one("members", "guides-seen", f"{guided} --set options.guide=calibrated")
    alike = guided.replace("third", "deep")
    yield _one("members", "guides-fused", f"{alike} --fuse on --set options.guide=heterogeneous")
    yield Case(
        part="members",
        name="again",
        commands=(
            words(f"{base} --fuse on"),
            words(f"{base} --fuse off --seed 0".replace("--out run", "--out next")),
            words(f"{base} --method ensemble --fuse on".replace("--out run", "--out mean")),
        ),
    )
    # Long enough that further processes are worth their start: 1.stdout.log says if they were.
    slow = "--model mlp:hidden=1000,depth=2 --data mnist1d:train=4000,test=1000"
    pool = f"train --out run --method ensemble {TINY} {slow} --set options.members=3"
    pooled = f"{pool} --set recipe.epochs=16 --set machine.measure_every=16"
    yield Case(part="members", name="pool", commands=(words(pooled),), cold=True, timed=True)


def resume_cases(methods: Sequence[Mapping[str, Any]]) -> Iterator[Case]:
    """Stopped after each epoch, and resumed until they are finished."""
    for method in methods:
        name, needs = method["name"], method["needs"]
        if "members" in needs:
            continue
        more = f"--method {name} {OLD if 'old' in needs else ''} --set recipe.augment={SHAKEN}"
        yield _stopped(name, more, starts=3, quick=name in ("none", "codistill-skl"))
    for name, more, starts in (
        ("ensemble-fused", "--method ensemble --set options.members=3 --fuse on", 5),
        ("ensemble-alone", "--method ensemble --set options.members=2 --fuse off", 8),
        ("elodi-fused", "--method elodi --set options.members=3 --fuse on", 6),
        ("elodi-alone", "--method elodi --set options.members=2 --fuse off", 10),
        ("elodi-auto", "--method elodi --set options.members=2", 10),
        (
            "elodi-views",
            "--method elodi --set options.members=2 --set options.views=2 --fuse on "
            f"--set recipe.augment={SHAKEN}",
            9,
        ),
        ("elodi-reuse", f"--method elodi --set options.members=3 --fuse on {REUSE}", 6),
        (
            "elodi-chunks",
            "--method elodi --set options.members=4 --fuse on --set machine.fuse_chunk=2",
            9,
        ),
        ("fine-tuned", f"--set fine_tune=true {OLD}", 3),
        ("clip", "--set recipe.clip=0.05 --set recipe.accumulate=2", 3),
        ("double", "--set machine.precision=64-true", 3),
    ):
        yield _stopped(name, more, starts=starts, quick=name == "elodi-fused")


SHAKEN = "shift-scale-noise"
REUSE = "--set options.reuse=1 --old {setup}/parent"


def process_cases() -> Iterator[Case]:
    """Two processes that share every batch."""
    base = f"train --out run {TINY} --set machine.processes=2 --set machine.device=cpu"
    for name, more in {
        "fd-kl": f"--method fd-kl {OLD} --set recipe.batch_size=51 --set recipe.clip=0.05",
        "elodi": "--method elodi --set options.members=2 --fuse off",
    }.items():
        yield Case(
            part="processes",
            name=name,
            commands=(words(f"{base} {more}"),),
            cold=True,
            quick=name == "fd-kl",
        )
    stopped = words(f"{base} {STOP}")
    yield Case(
        part="processes", name="stopped", cold=True, commands=(stopped, words(f"{base} --resume"))
    )


def fine_tune_cases() -> Iterator[Case]:
    """From an old model's weights, whose classes may be fewer."""
    for name, more in {
        "same": OLD,
        "fewer": "--old {setup}/fewer",
        "wider": "--old {setup}/third",
        "fewer-fd-kl": "--old {setup}/fewer --method fd-kl",
        "same-l2-sp": f"{OLD} --method l2-sp",
        "same-ewc": f"{OLD} --method ewc",
        "same-mixout": f"{OLD} --method mixout",
        "same-double": f"{OLD} --set machine.precision=64-true",
        "same-mixed": f"{OLD} --set machine.precision=bf16-mixed --set recipe.clip=0.1",
        "same-accumulated": f"{OLD} --set recipe.accumulate=2 --set recipe.warmup=1",
        "fewer-elodi": "--old {setup}/fewer --method elodi --set options.members=2 --fuse on",
        "same-codistill": f"{OLD} --method codistill-skl",
        "without-old": "",
    }.items():
        command = f"train --out run {TINY} --set fine_tune=true {more}"
        yield _one("finetune", name, command, quick=name in ("same", "fewer"))


def study_cases() -> Iterator[Case]:
    """A few small studies in one folder, and what is shown of them."""
    sets = (
        "--set recipe.epochs=2 --set recipe.warmup=0 --set roles.small=mlp:hidden=8 "
        "--set roles.large=mlp:hidden=12 --set roles.larger=mlp:hidden=16 "
        "--set data=mnist1d:train=600,test=300 --set machine.measure_every=1"
    )
    for name, studies, quick in (
        ("first", ("pct.table2a", "pct.figure5"), True),
        ("second", ("pct.table5b", "elodi.table5", "churn.table4", "elodi.figure4"), False),
    ):
        run = f"study run {' '.join(studies)} --seeds 2 --members 2 --out out --processes 1 {sets}"
        commands = [words(f"{run} --plan"), words(run)]
        for study in studies:
            commands.append(words(f"study show {study} --out out --markdown {study}.md"))
            commands.append(words(f"study show {study} --out out --plot {study}.svg"))
        yield Case(part="study", name=name, commands=tuple(commands), quick=quick)
    pooled = (
        f"study run pct.table2a --seeds 2 --first-seed 3 --members 2 --out out --processes 2 {sets}"
    )
    yield Case(part="study", name="pool", commands=(words(pooled),), cold=True)
    tables = (words("study list"), words("study list --json"), words("study show pct.table2a"))
    yield Case(part="study", name="tables", commands=tables, quick=True)


def demo_cases() -> Iterator[Case]:
    """The demonstration, which takes minutes."""
    yield Case(part="demo", name="demo", commands=(words("demo --out out"),), cold=True)


def _one(part: str, name: str, command: str, *, quick: bool = False) -> Case:
    return Case(part=part, name=name, commands=(words(command),), quick=quick)


def _stopped(name: str, more: str, *, starts: int, quick: bool) -> Case:
    command = f"train --out run {THREE} --set machine.save_seconds=0 {more}"
    stopped = [f"{command} {STOP}{' --resume' if place else ''}" for place in range(starts - 1)]
    commands = tuple(words(text) for text in (*stopped, f"{command} --resume"))
    return Case(part="resume", name=name, commands=commands, quick=quick)


def _sets(values: str, table: str) -> str:
    return " ".join(f"--set {table}{value}" for value in values.split())
