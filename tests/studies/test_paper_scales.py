"""The scales of the papers' size: their settings, and all of their commands on made-up data."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.studies import paper_data
from tests.studies.test_running import Ran, flipguard

from flipguard.runs.config import as_dict
from flipguard.studies import costs
from flipguard.studies.collect import differences
from flipguard.studies.job import prepare_job
from flipguard.studies.plan import NotAtScaleError, StudyPlan, plan_study
from flipguard.studies.read_study import studies, study_of
from flipguard.studies.results import read_result
from flipguard.studies.scales import scale_of

SCALES = ("imagenet", "inaturalist", "cifar10-450", "cifar100-450", "svhn")
# A few steps that cannot diverge, whatever the sums over classes.
QUICK = ("recipe.epochs=1", "recipe.batch_size=16", "recipe.learning_rate=1e-6")
IMAGES = ("data=imagenet:size=32", f"classes={paper_data.CLASSES}")


def planned(study: str, scale: str, *settings: str) -> StudyPlan:
    size = scale_of(scale).set(settings)
    return plan_study(study_of(study), size, seeds=[0], out=Path("out"), machine={})


def of_scale(scale: str) -> list[str]:
    found = []
    for study in studies():
        try:
            planned(study, scale)
        except NotAtScaleError:
            continue
        found.append(study)
    return found


def run(
    out: Path,
    root: Path,
    scale: str,
    *ids: str,
    settings: tuple[str, ...],
    members: int = 2,
    processes: int = 1,  # each one imports torch, which takes longer than a few small runs
) -> Ran:
    told = [part for text in (*QUICK, *settings) for part in ("--set", text)]
    told += ["--set", f"data_root={root}", "--seeds", "1", "--device", "cpu"]
    told += ["--members", str(members), "--processes", str(processes)]
    return flipguard("run", *ids, "--scale", scale, *told, "--out", str(out))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for make in (paper_data.imagenet, paper_data.inaturalist, paper_data.svhn, paper_data.cifar):
        make(folder)
    return folder


# -- settings ------------------------------------------------------------------------------------


def models(plan: StudyPlan, *, adopted: bool = False) -> set[str]:
    return {node.config.model for node in plan.nodes if node.adopted == adopted}


def test_every_scale_has_the_tables_of_its_data() -> None:
    found = {scale: of_scale(scale) for scale in SCALES}
    assert found["inaturalist"] == ["pct.table2b", "elodi.table2", "churn.table2"]
    assert found["svhn"] == ["churn.table2"]
    assert found["cifar10-450"] == [f"churn.table{number}" for number in (1, 2, 3, 4, 6, 7)]
    tables = [f"churn.table{number}" for number in (2, 3, 4, 7)]
    assert found["cifar100-450"] == [*tables, "churn.figure3"]
    # All others but the news of table 4 are of ImageNet.
    others = {study for scale in SCALES[1:] for study in found[scale]} | {"elodi.table4"}
    several = {"churn.table2", "churn.table4", "churn.table7"}
    assert set(found["imagenet"]) == set(studies()) - others | several


@pytest.mark.parametrize("scale", SCALES)
def test_no_row_is_left_out(scale: str) -> None:
    for study in of_scale(scale):
        plan = planned(study, scale)
        assert {line for line in plan.left_out if plan.study.lines[line].why_not is None} == set()
        assert not any(one.startswith(("model: ", "data: ")) for one in differences(plan))


NETS = {
    "pct.table4b": {"timm:resnet18", "timm:densenet161"},
    "elodi.table6": {
        *("timm:resnet18", "timm:resnet101", "timm:densenet161"),
        "timm:swin_tiny_patch4_window7_224",
    },
    "churn.table2": {"timm:resnetv2_50"},
}


@pytest.mark.parametrize("study", NETS)
def test_models_are_those_of_the_table(study: str) -> None:
    assert models(planned(study, "imagenet")) == NETS[study]


def test_published_models_are_adopted_and_those_that_replace_themselves_trained() -> None:
    plan = planned("pct.figure2", "imagenet")
    zoo = {*plan.scale.roles.values()}
    assert {"torchvision:alexnet", "timm:resnet152.tv_in1k"} < zoo
    assert models(plan, adopted=True) == models(plan) == zoo
    nodes = {node.folder: node for node in plan.nodes}
    for update in plan.updates:
        old, new = nodes[update.old], nodes[update.new]
        same = old.config.model == new.config.model
        assert (old.adopted, new.adopted) == (not same, not same)
        assert old.folder != new.folder


def test_a_network_of_flipguard_is_trained_where_others_are_adopted() -> None:
    plan = planned("pct.figure2", "imagenet", "roles.large=resnet32")
    assert "resnet32" in models(plan) - models(plan, adopted=True)
    assert "torchvision:alexnet" in models(plan, adopted=True)


@pytest.mark.parametrize("setting", ["scope.validation=0.1", "preprocessing.input_size=[112]"])
@pytest.mark.parametrize("study", ["pct.figure2", "elodi.figure2"])
def test_settings_that_adopted_models_do_not_have_are_refused(study: str, setting: str) -> None:
    with pytest.raises(
        NotAtScaleError, match=f"without {setting.partition('=')[0]} in `settings=`"
    ):
        planned(study, "imagenet", setting)
    planned("pct.table2a", "imagenet", setting)


def test_ensembles_of_many_architectures_are_those_of_elodis_table_9() -> None:
    plan = planned("elodi.table8", "imagenet")
    many = [spec for specs in plan.scale.many.values() for spec in specs]
    assert len(set(many)) == 16
    assert models(plan, adopted=True) == set(many)
    own = {"timm:resnet18", "timm:resnet50", "timm:vgg13", "timm:densenet121"}
    # Calibrated members must not have seen the samples of the calibration.
    assert models(plan) == own | set(many)
    held_out = {n.config.scope.samples for n in plan.nodes if n.config.model in set(many) - own}
    assert held_out == {1.0, 0.9}
    nodes = {node.folder: node for node in plan.nodes}
    weak = next(n for n in plan.nodes if len(n.config.guides) == 8 and n.role == "small")
    assert all(nodes[Path(folder)].adopted for folder in weak.config.guides)
    two = plan_study(
        study_of("elodi.figure2"),
        scale_of("imagenet"),
        seeds=[0, 1],
        out=Path("out"),
        machine={},
    )
    assert models(two, adopted=True) == set(many), "no seed changes them"


def test_one_rate_does_not_train_all() -> None:
    plan = planned("elodi.table8", "imagenet")
    rates = {n.config.model: n.config.recipe.learning_rate for n in plan.nodes if not n.adopted}
    assert {rate for model, rate in rates.items() if ":vgg" in model} == {0.01}
    assert {rate for model, rate in rates.items() if ":vgg" not in model} == {0.1}
    told = differences(plan)
    assert "recipe of timm:vgg13: learning_rate = 0.01" in told
    swin = planned("elodi.table6", "imagenet")
    assert {n.config.recipe.optimizer for n in swin.nodes if "swin" in n.config.model} == {"adamw"}
    # What the user sets comes last.
    mine = planned("elodi.table8", "imagenet", "recipe.learning_rate=0.5")
    assert {n.config.recipe.learning_rate for n in mine.nodes if not n.adopted} == {0.5}
    # But a rate for SGD does not reach a model with AdamW.
    for settings, rates_of_swin in (
        (["recipe.learning_rate=0.5"], {0.001}),
        (["recipe.learning_rate=0.5", "recipe.optimizer=sgd"], {0.5}),
    ):
        two = planned("elodi.table6", "imagenet", *settings, "recipe.epochs=9")
        of_swin = [n.config.recipe for n in two.nodes if "swin" in n.config.model]
        assert {recipe.learning_rate for recipe in of_swin} == rates_of_swin
        assert {recipe.epochs for recipe in of_swin} == {9}


@pytest.mark.parametrize(
    "setting",
    [
        "recipe.epochs=9",
        "recipe.learning_rate=0.5",
        "recipe.preset=cifar-short",
        "preprocessing.input_size=[112]",
        "scope.validation=0.1",
    ],
)
def test_what_the_user_sets_is_added_to_the_differences(setting: str) -> None:
    as_is = differences(planned("pct.table2a", "imagenet"))
    found = differences(planned("pct.table2a", "imagenet", setting))
    assert [one for one in found if one not in as_is] == [f"set by the user: {setting}"]
    assert set(as_is) < set(found)


def test_what_a_paper_does_not_state_is_a_difference() -> None:
    for scale in ("cifar10-450", "cifar100-450", "svhn"):
        found = differences(planned("churn.table2", scale))
        assert [one for one in found if one.startswith("inputs: ")] == [
            "inputs: the paper does not say how pixels are scaled; here from -1 to 1"
        ]
        assert "seeds: 1 instead of 10" in found
    assert any("year of iNaturalist" in o for o in differences(planned("pct.table2b", SCALES[1])))
    assert any("256 models" in one for one in differences(planned("elodi.figure5", "imagenet")))
    assert not any("top 10" in o for o in differences(planned("churn.table2", "imagenet")))


@pytest.mark.parametrize("paper", ["pct.table2b", "elodi.table2", "churn.table2"])
def test_each_paper_has_its_inaturalist(paper: str) -> None:
    plan = planned(paper, "inaturalist")
    year, classes = ("2018", 8142) if paper == "churn.table2" else ("2017", 5089)
    assert (plan.scale.data, plan.scale.classes) == (f"inaturalist:year={year}", classes)
    starts = {(n.config.pretrained, n.config.weights) for n in plan.nodes}
    assert starts == {(False, None) if year == "2018" else (True, "IMAGENET1K_V1")}
    shown = plan.study.title_at(pretrained=plan.scale.pretrained)
    assert shown == plan.study.title, "the paper's own title: it is fine-tuned where that is"


def test_equations_are_as_printed() -> None:
    plan = planned("elodi.table1", "imagenet")
    for method in ("fd-lm", "elodi"):
        found = [n.config.options for n in plan.nodes if n.config.method == method]
        assert {one["class_reduction"] for one in found} == {"sum"}
    assert {n.config.options["k"] for n in plan.nodes if n.config.method == "elodi"} == {10, None}
    told = {n.config.options["direction"] for n in plan.nodes if n.config.method == "fd-kl"}
    assert told == {"reverse"}
    churn = planned("churn.table2", "imagenet")
    skl = [n.config.options for n in churn.nodes if n.config.method == "skl"]
    assert {(one["floor"], one["k"]) for one in skl} == {(0.0, 10)}
    # At the other scales they are as before.
    other = planned("elodi.table1", "cifar100")
    assert "mean" in {n.config.options.get("class_reduction") for n in other.nodes}


@pytest.mark.parametrize(
    ("scale", "study", "seeds"),
    [
        ("imagenet", "pct.table2a", 1),
        ("imagenet", "churn.table2", 10),
        ("cifar10-450", "churn.table2", 10),
        ("cifar10-450", "churn.table1", 5),
        ("svhn", "churn.table2", 10),
    ],
)
def test_as_many_seeds_as_the_paper(scale: str, study: str, seeds: int, root: Path) -> None:
    settings = [f"data_root={root}"]
    task = prepare_job([study], scale=scale, out=root, settings=settings, plan_only=True)
    assert [len(plan.seeds) for plan in task.plans] == [seeds]
    one = prepare_job([study], scale=scale, out=root, settings=settings, seeds=2, plan_only=True)
    assert [len(plan.seeds) for plan in one.plans] == [2]


# -- commands ------------------------------------------------------------------------------------

# Small nets, with weights as small, in the libraries' own files.
ROLES = ("small", "large", "larger", "dissimilar", "foreign", "weak")
TINY = ("resnet", "efficientnet", "convnext", "byobnet", "vit", "nfnet")
TIMM = {role: f"timm:test_{net}.r160_in1k" for role, net in zip(ROLES, TINY, strict=True)}
YEAR = {
    year: (f"data=inaturalist:size=32,year={year}", "classes=20", "preprocessing.input_size=[32]")
    for year in (2017, 2018)
}
SQUEEZE = {"small": "torchvision:squeezenet1_0", "large": "torchvision:squeezenet1_1"}


def as_settings(roles: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"roles.{role}={spec}" for role, spec in roles.items())


@pytest.fixture
def published(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Iterable[str]], None]:
    """A function that puts random weights of models where their libraries look."""

    def publish(specs: Iterable[str]) -> None:
        cache = tmp_path_factory.getbasetemp() / "published"
        for spec in specs:
            for name, value in paper_data.publish(cache, spec).items():
                monkeypatch.setenv(name, value)

    return publish


def written(out: Path, scale: str, *ids: str) -> None:
    """All results are there, of runs that have finished, with a value in every row."""
    for study in ids:
        result = read_result(out / "results" / f"{study}.{scale}.json", study_of(study))
        assert result.rows
        for row in result.rows:
            # A series has no points with more members than there may be.
            assert row.values or "at most 2 members" in (row.why_not or "")
    documents = [json.loads(path.read_text()) for path in (out / "runs").rglob("run.json")]
    assert {document["status"] for document in documents} == {"finished"}


def test_trained_from_scratch(root: Path, tmp_path: Path) -> None:
    done = run(tmp_path, root, "imagenet", "pct.figure6", settings=IMAGES)
    assert done.code == 0, done.err
    written(tmp_path, "imagenet", "pct.figure6")
    assert "small is timm:resnet18" in " ".join(done.out.split())
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/run.json")]
    assert {tuple(one["preprocessing"]["mean"]) for one in runs} == {(0.485, 0.456, 0.406)}


def test_published_models_are_compared(
    root: Path, tmp_path: Path, published: Callable[[Iterable[str]], None]
) -> None:
    # Two nets in place of six.
    two = {role: tuple(TIMM.values())[role in ROLES[::2]] for role in ROLES}
    published(two.values())
    settings = (*IMAGES, *as_settings(two))
    done = run(tmp_path, root, "imagenet", "pct.figure2", settings=settings)
    assert done.code == 0, done.err
    written(tmp_path, "imagenet", "pct.figure2")
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/run.json")]
    assert sorted("adopted" in one for one in runs) == [False] * 4 + [True] * 2
    # The command again trains and adopts nothing.
    again = run(tmp_path, root, "imagenet", "pct.figure2", settings=settings)
    assert again.code == 0, again.err
    assert "6 of them finished: nothing to train" in again.err


def test_fine_tuned_from_published_weights(
    root: Path, tmp_path: Path, published: Callable[[Iterable[str]], None]
) -> None:
    published(SQUEEZE.values())
    settings = (*YEAR[2017], *as_settings(SQUEEZE))
    done = run(tmp_path, root, "inaturalist", "pct.table2b", settings=settings, members=1)
    assert done.code == 0, done.err
    written(tmp_path, "inaturalist", "pct.table2b")
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("run.json")]
    starts = {one.get("start", "") for one in runs if one["config"]["method"] != "ensemble"}
    assert starts == {
        "starts from torchvision's published weights IMAGENET1K_V1, with a new head, because its "
        "classes are others (none is 'Species 0')"
    }
    assert "one architecture fine-tuned twice" in " ".join(done.out.split()).lower()


def test_a_plan_times_the_models(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "TIMED_SECONDS", 0.1)
    settings = (*IMAGES, *as_settings(TIMM))
    told = [part for text in (*QUICK, *settings) for part in ("--set", text)]
    told += ["--set", f"data_root={root}", "--device", "cpu", "--out", str(tmp_path / "out")]
    first = flipguard("run", "pct.table4b", "--scale", "imagenet", "--plan", *told)
    assert "5 runs, 0 of them finished: an unknown time; --plan --time" in first.out
    assert first.out.count("?") == 10
    timed = flipguard("run", "pct.table4b", "--scale", "imagenet", "--plan", "--time", *told)
    assert timed.code == 0, timed.err
    assert "timed here, by similar runs or a few steps" in " ".join(timed.out.split())
    assert "?" not in timed.out
    assert not (tmp_path / "out").exists()


def test_the_time_of_an_untreated_run_tells_that_of_a_treated_one(tmp_path: Path) -> None:
    plan = planned("pct.table4b", "imagenet")
    plain = next(node for node in plan.nodes if "densenet" in node.config.model)
    treated = next(node for node in plan.nodes if node.config.method == "fd-lm")
    known = costs.Costs(plan.scale)
    assert known.seconds(treated) is None
    folder = tmp_path / "run"
    folder.mkdir()
    document = {
        "schema": "flipguard.run/1",
        "status": "finished",
        "config": as_dict(plain.config),
        "data": {"class_names": ["a", "b"], "input_shape": [3, 32, 32]},
    }
    (folder / "run.json").write_text(json.dumps(document))
    (folder / "timing.jsonl").write_text('{"seconds": 6.0}\n{"seconds": 12.0}\n')
    known.learn(folder)
    epochs = plain.config.recipe.epochs
    assert known.seconds(plain) == 9.0 * epochs
    # A step of distillation also calls the old model, which costs a third of a step.
    assert known.seconds(treated) == pytest.approx(9.0 * epochs * 4 / 3)


def test_a_model_of_half_of_the_classes_takes_half_of_the_time() -> None:
    plan = planned("pct.table5b", "imagenet")
    by_classes = {n.config.scope.classes: n for n in plan.nodes if n.config.method == "none"}
    known = costs.Costs(dataclasses.replace(plan.scale, seconds=dict.fromkeys(ROLES, 60.0)))
    half, every = (known.seconds(by_classes[classes]) for classes in (500, None))
    assert half is not None
    assert every == pytest.approx(2 * half)


def test_svhn(root: Path, tmp_path: Path) -> None:
    done = run(tmp_path, root, "svhn", "churn.table2", settings=())
    assert done.code == 0, done.err
    written(tmp_path, "svhn", "churn.table2")


# The first two of each ensemble of many architectures.
MANY = ("timm:resnet18.tv_in1k", "torchvision:googlenet")
MANY += ("timm:resnet50.tv_in1k", "timm:densenet121.tv_in1k")
EVERY = (
    ("imagenet", (*IMAGES, *as_settings(TIMM)), (*TIMM.values(), *MANY)),
    ("cifar10-450", (), ()),
    ("cifar100-450", (), ()),
)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "settings", "weights"), EVERY, ids=[one[0] for one in EVERY])
def test_every_study(
    scale: str,
    settings: tuple[str, ...],
    weights: tuple[str, ...],
    root: Path,
    tmp_path: Path,
    published: Callable[[Iterable[str]], None],
) -> None:
    published(weights)
    done = run(tmp_path, root, scale, "all", settings=settings, processes=2)
    assert done.code == 0, done.err
    written(tmp_path, scale, *of_scale(scale))


@pytest.mark.slow
@pytest.mark.parametrize("year", YEAR)
def test_every_study_of_inaturalist(
    year: int, root: Path, tmp_path: Path, published: Callable[[Iterable[str]], None]
) -> None:
    published(SQUEEZE.values())
    ids = ("churn.table2",) if year == 2018 else ("pct.table2b", "elodi.table2")
    settings = (*YEAR[year], *as_settings(SQUEEZE))
    done = run(tmp_path, root, "inaturalist", *ids, settings=settings, processes=2)
    assert done.code == 0, done.err
    written(tmp_path, "inaturalist", *ids)


# With the papers' own models: the larger images are what some of them need. A run with one of them
# takes hundreds of megabytes, so that an ensemble of many runs has one member.
OWN = [
    ("pct.table4b", 32, (), 2),
    ("pct.figure2", 80, tuple(scale_of("imagenet").studies["pct.figure2"]["roles"].values()), 2),
    ("elodi.table6", 32, (), 1),
    ("elodi.table8", 80, MANY, 2),
    ("churn.table2", 32, (), 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("study", "size", "weights", "members"), OWN, ids=[one[0] for one in OWN])
def test_the_papers_own_models(
    study: str,
    size: int,
    weights: tuple[str, ...],
    members: int,
    root: Path,
    tmp_path: Path,
    published: Callable[[Iterable[str]], None],
) -> None:
    published(weights)
    # A checkpoint without momentum is half as large.
    settings = (f"data=imagenet:size={size}", IMAGES[1], "recipe.momentum=0")
    done = run(tmp_path, root, "imagenet", study, settings=settings, members=members, processes=2)
    assert done.code == 0, done.err
    written(tmp_path, "imagenet", study)
    shutil.rmtree(tmp_path / "runs")  # gigabytes


@pytest.mark.slow
def test_all_architectures_of_elodis_table_9(
    root: Path, tmp_path: Path, published: Callable[[Iterable[str]], None]
) -> None:
    many = [spec for specs in scale_of("imagenet").many.values() for spec in specs]
    published(many)
    told = (*IMAGES, *as_settings(TIMM))
    done = run(tmp_path, root, "imagenet", "elodi.figure2", settings=told, members=8, processes=2)
    assert done.code == 0, done.err
    written(tmp_path, "imagenet", "elodi.figure2")
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/run.json")]
    assert {one["config"]["model"] for one in runs if "adopted" in one} == set(many)
    shutil.rmtree(tmp_path / "runs")
