"""Every table has a study, or a reason why not; and what the studies become as runs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from flipguard.errors import InputError
from flipguard.methods import METHODS
from flipguard.runs.scope import Scope
from flipguard.studies.collect import differences
from flipguard.studies.paper_tables import paper_tables
from flipguard.studies.plan import StudyPlan, plan_study
from flipguard.studies.read_study import read_study, studies, study_of, without_study
from flipguard.studies.run_graph import PlannedRun, key_in_name
from flipguard.studies.scales import scale_of, scales
from flipguard.studies.study import DEFAULT_METRICS, HISTOGRAM_METRICS
from flipguard.training import Run, reuse
from flipguard.training.members import member_config, member_folder

MACHINE = {"device": "cpu", "threads": 1}
FIRST = (
    *("elodi.table1", "elodi.table3", "elodi.table5", "elodi.table7"),
    *("pct.table2a", "pct.table3", "pct.table4a", "pct.table5a"),
    *("churn.table1", "churn.table2", "churn.table3"),
)


def planned(id: str, scale: str = "mnist1d", seeds: int = 1, **more: object) -> StudyPlan:
    return plan_study(
        study_of(id),
        scale_of(scale),
        seeds=range(seeds),
        out=Path("out"),
        machine=MACHINE,
        **more,  # type: ignore[arg-type]
    )


# -- the catalogue -------------------------------------------------------------------------------


def test_every_table_has_a_study_or_a_reason_why_not() -> None:
    # Figures that are only pictures to look at are no tables here, and have a reason all the same.
    assert set(studies()) | set(without_study()) >= set(paper_tables())
    # A study of a table that is not in the papers holds the table itself.
    assert all(one.table.id in (name, *paper_tables()) for name, one in studies().items())
    assert set(studies()) & set(without_study()) == set()
    assert all(reason.endswith(".") for reason in without_study().values())
    assert set(FIRST) <= set(studies())


@pytest.mark.parametrize(
    ("id", "said"),
    [
        (
            "elodi.tabel1",
            "Expected a study, but got 'elodi.tabel1'; did you mean elodi.table1, elodi.table11 or "
            "elodi.table10? `flipguard study list` describes each of them.",
        ),
        (
            "nosuch",
            "Expected a study, but got 'nosuch'; `flipguard study list` describes each of them.",
        ),
        (
            "churn.table5",
            "Expected a study, but there is none of churn.table5: It holds no results to repeat: "
            "it lists the hyper-parameters of churn.table2.",
        ),
    ],
)
def test_what_is_no_study_is_told_in_a_sentence(id: str, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        study_of(id)
    assert str(refusal.value) == said


@pytest.mark.parametrize("id", studies())
def test_every_row_of_the_paper_is_a_line(id: str) -> None:
    study = studies()[id]
    ours = [line.paper for line in study.lines if line.paper is not None]
    assert ours == list(study.table.rows)
    counted = () if study.histogram is None else HISTOGRAM_METRICS.get(study.histogram.of, ())
    assert set(study.metrics) <= {*DEFAULT_METRICS, *counted}
    assert {line.new.method.partition("+")[0] for line in study.lines} <= {*METHODS, ""}


@pytest.mark.parametrize("id", studies())
def test_every_study_can_be_planned_at_the_smallest_scale(id: str) -> None:
    plan = planned(id)
    every = {node.folder for node in plan.nodes}
    before: set[Path] = set()
    for node in plan.nodes:
        assert node.after <= before, "those that others need come first"
        before.add(node.folder)
    assert {update.old for update in plan.updates} | {u.new for u in plan.updates} <= every
    # Only what no scale can do is left out.
    reasons = [why for why in plan.left_out.values() if "members at" not in why]
    assert len(reasons) == sum(line.why_not is not None for line in plan.study.lines)


@pytest.mark.parametrize("scale", scales())
def test_every_scale_plans_or_refuses_every_study(scale: str) -> None:
    size = scale_of(scale).set(["model=folder"] if scale.startswith("agnews") else [])
    planned_ones = 0
    for study in studies().values():
        try:
            plan = plan_study(study, size, seeds=[0], out=Path("out"), machine=MACHINE)
        except InputError:
            continue  # which says why, as is tested elsewhere
        planned_ones += 1
        assert all("{" not in node.config.model for node in plan.nodes)
    assert planned_ones >= (1 if size.exact else 3)
    assert size.exact or set(size.seconds) >= set(size.roles)


# -- runs ----------------------------------------------------------------------------------------


def test_the_runs_of_a_table() -> None:
    plan = planned("elodi.table1", seeds=5)
    methods = Counter(node.config.method for node in plan.nodes)
    # Eight members a side, old and new, and one untreated model a side, for each of five seeds.
    assert methods.pop("none") == 5 * 2 * (8 + 1)
    both_sides = {"ensemble": 1, "dropout": 1, "elodi": 2}
    assert {name: methods.pop(name) for name in both_sides} == {
        name: 5 * 2 * rows for name, rows in both_sides.items()
    }
    assert methods == dict.fromkeys(("bct", "ract", "kd", "fd-kl", "fd-lm", "bu-cr"), 5)


def test_untreated_runs_are_shared_by_studies_and_know_no_old_one() -> None:
    first, second = planned("pct.table4a", seeds=2), planned("elodi.table1", seeds=2)
    shared = {n.folder for n in first.nodes} & {n.folder for n in second.nodes}
    # Old and new, untreated; the members of both ensembles and the ensembles themselves.
    plain = [n for n in first.nodes if n.config.method == "none"]
    assert {n.folder for n in plain} <= shared
    assert all(not n.config.old for n in plain)


def test_a_run_is_known_by_what_it_becomes() -> None:
    def names(out: str, machine: dict[str, object]) -> list[str]:
        study, scale = study_of("pct.table2a"), scale_of("mnist1d")
        plan = plan_study(study, scale, seeds=[0], out=Path(out), machine=machine)
        assert len({node.folder for node in plan.nodes}) == len(plan.nodes)
        return [node.folder.name for node in plan.nodes]

    here = names("a", MACHINE)
    assert names("b", {"device": "cuda", "threads": 8}) == here
    # Another precision changes the numbers, and so every run.
    assert not set(names("b", {"device": "cuda", "precision": "bf16-mixed"})) & set(here)


def test_a_history_with_gaps_has_the_same_key_in_another_folder() -> None:
    """The studies of curves need every epoch; the weights are the same."""
    curves, other = planned("pct.figure5"), planned("pct.figure4")
    assert {key_in_name(n.folder) for n in curves.nodes} & {
        key_in_name(n.folder) for n in other.nodes
    }
    assert not {node.folder for node in curves.nodes} & {node.folder for node in other.nodes}
    assert {node.config.machine.measure_every for node in curves.nodes} == {1}


def test_seeds_of_old_and_new_never_meet() -> None:
    plan = planned("churn.table2", seeds=3)
    nodes = {node.folder: node for node in plan.nodes}
    for update in plan.updates:
        old, new = nodes[update.old].config, nodes[update.new].config
        assert new.seeds.seed == update.seed
        assert old.seeds.seed == 1000 + update.seed
        assert (old.method, old.options) == (new.method, new.options)


def test_a_chain_of_updates() -> None:
    plan = planned("elodi.table5")
    nodes = {node.folder: node for node in plan.nodes}

    def new(label: str, old: str, to: str) -> tuple[str, list[str]]:
        (update,) = (
            u
            for u in plan.updates
            if (line := plan.study.lines[u.line]).label == label
            and line.paper is not None
            and (line.paper.old, line.paper.new) == (old, to)
        )
        node = nodes[update.new]
        return node.folder.name, [nodes[Path(o)].config.model for o in node.config.old]

    small, large = "mlp:hidden=64", "mlp:hidden=192,depth=2"
    assert new("FD (chain)", "ResNet-18", "ResNet-101")[1] == [large]
    assert new("FD (radial)", "ResNet-50", "ResNet-101")[1] == [small]
    assert new("FD (fc)", "ResNet-50", "ResNet-101")[1] == [small, large]
    # The same third model, held against the second and against the first.
    for label in ("None", "FD (chain)", "FD (radial)", "FD (fc)", "ELODI"):
        names = [new(label, old, "ResNet-101")[0] for old in ("ResNet-18", "ResNet-50")]
        assert names[0] == names[1]


def test_what_old_had_not_seen() -> None:
    for study, scope in (("pct.table5a", (0.5, None)), ("pct.table5b", (1.0, 5))):
        plan = planned(study)
        nodes = {node.folder: node for node in plan.nodes}
        for update in plan.updates:
            old, new = nodes[update.old].config.scope, nodes[update.new].config.scope
            assert ((old.samples, old.classes), (new.samples, new.classes)) == (scope, (1.0, None))
            # The committed results were made with these choices.
            assert (old.class_choice, old.per_class, old.seed) == ("first", False, 0)


def test_the_papers_scales_choose_as_the_paper_does() -> None:
    """Random classes and a share of each class, anew for each seed; PCT, tables 5a and 5b."""
    for study in ("pct.table5a", "pct.table5b"):
        plan = planned(study, "imagenet", seeds=2)
        nodes = {node.folder: node for node in plan.nodes}
        for update in plan.updates:
            old, new = nodes[update.old].config.scope, nodes[update.new].config.scope
            assert (old.class_choice, old.per_class, old.seed) == ("random", True, update.seed)
            assert new == Scope()
        assert not [one for one in differences(plan) if "the old model's" in one]


def test_a_validation_split_of_a_study() -> None:
    told = ["scope.validation=0.1"]
    for study in ("pct.table2a", "pct.table5b"):
        for name, per_seed in (("mnist1d", False), ("imagenet", True)):
            size = scale_of(name).set(told)
            plan = plan_study(study_of(study), size, seeds=(0, 1), out=Path("out"), machine=MACHINE)
            for node in plan.nodes:
                scope = node.config.scope
                assert (scope.validation, scope.seed) == (0.1, node.seed * per_seed)
    with pytest.raises(InputError, match=r"to set recipe\.NAME"):
        scale_of("mnist1d").set(["scope.samples=0.5"])
    with pytest.raises(InputError, match=r"Expected `scope\.validation` to be one of 'own'"):
        plan_study(
            study_of("pct.table2a"),
            scale_of("mnist1d").set(["scope.validation=x"]),
            seeds=(0,),
            out=Path("out"),
            machine=MACHINE,
        )


def fine_tuned_ensembles(plan: StudyPlan) -> list[tuple[PlannedRun, PlannedRun]]:
    """Old and new, of the rows whose ensembles start from old's weights."""
    nodes = {node.folder: node for node in plan.nodes}
    pairs = [(nodes[update.old], nodes[update.new]) for update in plan.updates]
    return [pair for pair in pairs if pair[1].config.method == "ensemble" and pair[1].config.old]


def test_members_of_a_fine_tuned_ensemble_start_from_those_of_old() -> None:
    plan = planned("pct.table7", seeds=2)
    nodes = {node.folder: node for node in plan.nodes}
    pairs = fine_tuned_ensembles(plan)
    assert len(pairs) == 2 * 2  # more samples and more classes
    for old, new in pairs:
        assert old.config.method == "ensemble"
        assert not old.config.fine_tune
        assert new.config.fine_tune
        assert len(new.members) == len(old.members) == 4
        assert new.after == {old.folder, *new.members}
        for start, member in zip(old.members, new.members, strict=True):
            assert nodes[member].config.old == (str(start),)
            assert nodes[member].after == {start}
            assert nodes[member].config.fine_tune
            assert not nodes[start].config.old
    # New ones are others than those from scratch, and old ones are the same.
    scratch = {u.old: u.new for u in plan.updates if not nodes[u.new].config.fine_tune}
    for old, new in pairs:
        assert new.folder != scratch[old.folder]
        assert not set(new.members) & set(nodes[scratch[old.folder]].members)


@pytest.mark.parametrize("out", ["out", "some/../out"])
def test_members_that_a_study_plans_are_those_that_a_run_looks_for(
    out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would be trained a second time, one after the other, by the run itself."""
    monkeypatch.setattr(reuse, "is_finished", lambda _: True)
    plan = plan_study(
        study_of("pct.table7"), scale_of("mnist1d"), seeds=[0], out=Path(out), machine=MACHINE
    )
    for old, new in fine_tuned_ensembles(plan):
        named = [os.path.relpath(member, old.folder) for member in old.members]
        run = Run(
            folder=Path(new.config.old[0]),
            config=old.config,
            status="finished",
            class_names=(),
            input_shape=None,
            document={"members": named},
        )
        wanted = reuse.start_runs(new.config, run)
        configs = [member_config(new.config, i, start) for i, start in enumerate(wanted)]
        folders = [member_folder(one, new.folder, key_of_run=key_in_name) for one in configs]
        assert folders == list(new.members)
        # And they wait for runs that are planned.
        waited = {folder for node in plan.nodes for folder in node.after}
        assert set(old.members) <= waited <= {node.folder for node in plan.nodes}


def test_an_old_ensemble_with_too_few_members_is_refused_by_the_plan() -> None:
    text = files("flipguard.studies").joinpath("catalog/pct.table7.toml").read_text()
    fewer = 'old = { method = "ensemble", options = { members = 2 } }\nnew = { follows'
    text = text.replace('old = "like new"\nnew = { follows', fewer)
    with pytest.raises(InputError, match="to have 4 members for as many new ones to start from"):
        plan_study(
            read_study(text, id="pct.table7"),
            scale_of("mnist1d"),
            seeds=[0],
            out=Path("out"),
            machine=MACHINE,
        )


def test_a_teacher_is_of_its_students_kind() -> None:
    plan = planned("elodi.table10", seeds=1)
    nodes = {node.folder: node for node in plan.nodes}
    students = [n for n in plan.nodes if n.config.method in ("kd", "fd-kl")]
    assert len(students) == 2 * 3
    for student in students:
        (teacher,) = (nodes[Path(folder)] for folder in student.config.old)
        assert teacher.config.method == "ensemble"
        assert teacher.config.model == student.config.model
        assert teacher.config.seeds == student.config.seeds


def test_a_paper_has_a_recipe_of_its_own_and_the_user_the_last_word() -> None:
    scale = scale_of("mnist1d")
    churn = scale.of_study("churn", "churn.table1")
    pct = scale.of_study("pct", "pct.table2a")
    assert (pct.recipe, pct.data) == (scale.recipe, scale.data)
    assert scale.of_study("pct", "pct.table3").recipe["optimizer"] == "sgd"  # a study's own
    assert (churn.recipe["weight_decay"], churn.data) == (0.3, "mnist1d:train=1000,test=10000")
    assert "warmup" not in churn.recipe  # instead of the scale's, not in addition
    told = scale.set(["recipe.weight_decay=0.1", "data=cifar10"])
    told = told.of_study("churn", "churn.table1")
    assert told.recipe == {**churn.recipe, "weight_decay": 0.1}
    assert told.data == "cifar10"
    texts = scale_of("agnews").set(["model=x"]).of_study("elodi", "elodi.table4")
    assert texts.roles == {"small": "hf:x"}


def test_so_has_a_study() -> None:
    scale = dataclasses.replace(
        scale_of("mnist1d"), studies={"churn.table2": {"recipe": {"epochs": 7}}}
    )
    one, other = (scale.of_study("churn", f"churn.table{n}") for n in (2, 3))
    assert one.recipe == {"epochs": 7}
    assert (one.data, one.machine) == (other.data, other.machine)  # the rest as its paper has it
    assert other.recipe == scale_of("mnist1d").of_study("churn", "churn.table2").recipe
    told = scale.set(["recipe.epochs=3"]).of_study("churn", "churn.table2")
    assert told.recipe["epochs"] == 3


def test_what_scales_have_for_papers_and_studies_is_of_some() -> None:
    """A misspelt name would change nothing; nor would what is read before a study is chosen."""
    known = studies()
    for scale in scales().values():
        assert set(scale.papers) <= {study.paper for study in known.values()}
        assert set(scale.studies) <= set(known)
        for own in [*scale.papers.values(), *scale.studies.values()]:
            assert not {"name", "sentence", "exact", "stands_for", "given"} & set(own)
            assert not any("{" in spec for spec in own.get("roles", {}).values())


@pytest.mark.parametrize("given", [(), ("options.kd.weight=6",)])
def test_a_plan_has_the_settings_of_its_study(given: tuple[str, ...]) -> None:
    scale = scale_of("cifar100").set(given)
    main, other = (
        plan_study(study_of(f"elodi.table{n}"), scale, seeds=[0], out=Path("x"), machine={})
        for n in (1, 3)
    )
    assert {node.config.recipe.epochs for node in main.nodes} == {32}
    assert {node.config.recipe.epochs for node in other.nodes} == {16}
    weights = {
        method: {n.config.options["weight"] for n in main.nodes if n.config.method == method}
        for method in ("kd", "fd-kl", "fd-lm", "ract")
    }
    assert weights == {"kd": {6 if given else 1}, "fd-kl": {0.1}, "fd-lm": {0.1}, "ract": {4}}


def test_where_files_are_is_no_setting() -> None:
    scale = scale_of("cifar100").set(["data_root=/some/where", "recipe.epochs=3"])
    assert (scale.data_root, scale.given_without_paths) == ("/some/where", ("recipe.epochs=3",))


def test_options_of_a_paper_become_those_of_a_scale() -> None:
    def of(scale: str, method: str) -> list[dict[str, object]]:
        plan = planned("elodi.table1", scale)
        return [dict(n.config.options) for n in plan.nodes if n.config.method == method]

    assert {one["k"] for one in of("mnist1d", "elodi")} == {None, 5}
    assert {one["k"] for one in of("cifar100", "elodi")} == {None, 10}
    assert {one["k"] for one in of("imagenet", "elodi")} == {None, 10}
    assert {one["weight"] for one in of("mnist1d", "fd-lm")} == {0.3}
    assert {one["weight"] for one in of("imagenet", "fd-lm")} == {1.0}
    few = planned("elodi.table1", most_members=2)
    assert {n.config.options.get("members") for n in few.nodes} == {None, 2}


def test_sources_of_randomness_are_fixed() -> None:
    plan = planned("churn.table1", seeds=2)
    nodes = {node.folder: node for node in plan.nodes}
    for update in plan.updates:
        row = plan.study.lines[update.line].paper
        assert row is not None
        old, new = nodes[update.old].config, nodes[update.new].config
        for where, source in (("identical_initialization", "init"), ("identical_order", "order")):
            same = old.seeds.of(source) == new.seeds.of(source)  # type: ignore[arg-type]
            assert same is row.where[where]
        removed = new.recipe.augment == "none"
        assert removed is row.where["remove_augmentation"]


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rows = 3 =", "not valid TOML"),
        ('table = "pct.table99"', "`table` to be one of a paper"),
        ("colour = 1", "but got 'colour'"),
        ("", "expected `rows` or `series`"),
        (
            'roles = { "ResNet-18" = "small" }\n[[rows]]\nmatch = { method = "none" }',
            "one of `rows` to match 'Naive'",
        ),
        ("[[rows]]", "`roles` to say what ResNet-18 is"),
        ('roles = { "ResNet-18" = "small" }\n[[rows]]\nold = "unlike"', "but got 'unlike'"),
        ('roles = { "ResNet-18" = "small" }\n[[rows]]\nnew = { x = 1 }', "but got 'x'"),
        (
            'roles = { "ResNet-18" = "small" }\n[[rows]]\nnew = { follows = ["nobody"] }',
            "`follows` to name old or one of `models`, but got 'nobody'",
        ),
        (
            'roles = { "ResNet-18" = "small" }\n[[rows]]\nunjudged = ["churn"]',
            "`unjudged` to list error_rate_old, ",
        ),
    ],
)
def test_a_malformed_study_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        read_study(text, id="pct.table2a")
    assert says in str(refused.value)


OWN_TABLE = """
roles = { A = "small" }

[[rows]]
old = "like new"

[table]
title = "Two methods."
section = "1"
data = "CIFAR-10"
scenario = "same"
old = "A"
new = "A"
unit = "%"
metrics = ["churn"]
row = [
  { label = "plain", method = "none", cells = [[5.8, 0.1]] },
  { label = "entropy", method = "entropy", cells = [5.0] },
]
"""


def test_a_study_can_hold_its_table() -> None:
    study = read_study(OWN_TABLE, id="other.table1")
    assert (study.id, study.table.id, study.paper) == ("other.table1", "other.table1", "other")
    assert [line.paper for line in study.lines] == list(study.table.rows)
    assert [row.value("churn") for row in study.table.rows] == [5.8, 5.0]
    plan = plan_study(study, scale_of("mnist1d"), seeds=[0], out=Path("out"), machine=MACHINE)
    assert Counter(node.config.method for node in plan.nodes) == {"none": 2, "entropy": 2}


@pytest.mark.parametrize(
    ("id", "replaced", "said"),
    [
        (
            "pct.table3",
            "",
            "pct.table3.toml: expected no `table`, because papers/pct.toml has pct.table3; "
            "remove it.",
        ),
        (
            "other.table1",
            'title = "Two methods."',
            "other.table1.toml: `table`: expected 'title', but got none.",
        ),
        (
            "other.rows",
            "",
            "other.rows.toml: `table`: expected an id such as 'other.table1' or 'other.figure1', "
            "but got 'other.rows'.",
        ),
    ],
)
def test_a_table_that_a_study_cannot_hold_is_refused(id: str, replaced: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_study(OWN_TABLE.replace(replaced, "") if replaced else OWN_TABLE, id=id)
    assert str(refused.value) == said


def test_an_unknown_scale_lists_the_known_ones_and_some_figures_have_no_study() -> None:
    with pytest.raises(InputError, match=r"there is none of elodi\.figure1b: Its numbers"):
        study_of("elodi.figure1b")
    with pytest.raises(InputError, match=r"there is none of elodi\.figure3: It draws the logits"):
        study_of("elodi.figure3")
    with pytest.raises(InputError, match=r"but got 'mnist'; did you mean .*mnist1d, fashion, "):
        scale_of("mnist")


def test_what_a_scale_cannot_be_told() -> None:
    scale = scale_of("mnist1d")
    for wrong in ("epochs=3", "recipe=3", "options.k=3", "colour.red=1"):
        with pytest.raises(InputError, match=r"`settings=` of a study to set recipe\.NAME"):
            scale.set([wrong])
    with pytest.raises(InputError, match="to be key=value"):
        scale.set(["recipe.epochs"])
    with pytest.raises(InputError, match="model=… in `settings=` at scale agnews"):
        planned("elodi.table4", "agnews")
    for to_no_avail, why in (
        ("roles.smal=lenet5", r"a role of the studies, but got 'smal'; there are small, large"),
        (
            "roles.small=nonet",
            r"`settings=`, roles\.small=nonet: Expected `model` to name a net, .*lenet5",
        ),
        ("roles.small=mlp:hiden=3", r"`settings=`, roles\.small=mlp:hiden=3: .*hidden"),
        ("roles.many_weak=lenet5", "a role of the studies, but got 'many_weak'"),
        ("options.codistill-skl+entropy.beta=1", r"set options\.codistill-skl\.beta"),
        ("options.fd.weight=1", "Expected a method, but got 'fd'; .*lists all"),
        ("options.kd.wieght=1", "options of `kd`, but got 'wieght'; did you mean weight"),
        ("options.elodi.k.10=5", r"options of `elodi`, but got 'k\.10'; .* lists all"),
    ):
        with pytest.raises(InputError, match=why):
            scale.set([to_no_avail])
    assert scale.set(["options.elodi.alpha=0.5"]).options["elodi"]["alpha"] == 0.5
    told = scale.set(["options.elodi.k={10=5}"])
    assert (told.option("elodi", "k", 10), told.option("elodi", "k", 7)) == (5, 7)


def test_neither_planning_nor_showing_needs_a_table_library() -> None:
    code = (
        "import sys\n"
        "for name in ('polars', 'duckdb', 'plotly'): sys.modules[name] = None\n"
        "import flipguard.cli, flipguard.cli.study, flipguard.studies.run\n"
        "import flipguard.studies.show, flipguard.studies.draw\n"
        "sys.argv = ['flipguard', 'study', 'list']\n"
        "flipguard.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "elodi.table1" in done.stdout
