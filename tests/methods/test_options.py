"""Options of methods: how they are completed, refused, and compared with the paper's."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flipguard.errors import InputError
from flipguard.methods import METHODS, method_of
from flipguard.methods.base import HELD_OUT, NEEDS, Method, Option, Printed, Revision, format_value
from flipguard.methods.elodi import ViewOptions, views_of
from flipguard.methods.needs import Members, Needs
from flipguard.methods.objective import BuildContext, Objective, Step, task_loss
from flipguard.references import OldModel
from tests.methods.scenes import Scene, build, options_of, scene


def nothing(_: BuildContext) -> Objective:
    raise AssertionError


MADE_UP = Method(
    name="made-up",
    sentence="For tests.",
    paper="none",
    build=nothing,
    options=(
        Option(
            name="weight",
            default=1.0,
            key_default=1.0,
            sentence="A number.",
            printed=Printed(value=2.0),
        ),
        Option(name="count", default=5, key_default=5, sentence="A whole number."),
        Option(name="on", default=True, key_default=True, sentence="Yes or no."),
        Option(
            name="kind",
            default="plain",
            key_default="plain",
            sentence="A word.",
            choices=("plain", "fancy"),
            printed=Printed(value="fancy", words="it is another", formula=True),
        ),
        Option(
            name="floor",
            default=0.5,
            key_default=0.5,
            sentence="Idle unless fancy.",
            printed=Printed(value=0.0, only=("kind", "fancy")),
        ),
        Option(name="k", default=None, key_default=None, sentence="A number or none."),
    ),
    unlike=("it is made up",),
)
BARE = dataclasses.replace(MADE_UP, name="bare", options=(), unlike=())


def test_what_is_not_given_has_its_default() -> None:
    assert MADE_UP.complete({}) == {
        "weight": 1.0,
        "count": 5,
        "on": True,
        "kind": "plain",
        "floor": 0.5,
        "k": None,
    }
    assert BARE.complete({}) == {}
    assert [option.name for option in MADE_UP.settable][-2:] == ["k", "preset"]
    assert BARE.settable == ()


def test_the_preset_takes_what_the_paper_has() -> None:
    found = MADE_UP.complete({"preset": "paper", "weight": 3})
    assert found["weight"] == 3.0
    assert isinstance(found["weight"], float)
    assert (found["kind"], found["floor"], found["count"]) == ("fancy", 0.0, 5)
    assert MADE_UP.complete({"preset": None}) == MADE_UP.complete({"preset": "none"})
    assert MADE_UP.complete({"preset": "none"}) == MADE_UP.complete({})
    assert MADE_UP.complete({"k": "none"})["k"] is None
    assert MADE_UP.complete({"k": 0})["k"] == 0


@pytest.mark.parametrize(
    ("method", "given", "sentence"),
    [
        (MADE_UP, {"wieght": 1.0}, "Expected the options of `made-up`, but got 'wieght'; did you"),
        (BARE, {"weight": 1.0}, "Expected no options, because `bare` has none, but got 'weight'"),
        (MADE_UP, {"kind": "odd"}, "Expected `kind` of `made-up` to be one of plain, fancy, but"),
        (MADE_UP, {"preset": "print"}, "Expected `preset` of `made-up` to be one of paper, but"),
        (MADE_UP, {"count": 2.5}, "`count` of `made-up` to be a whole number, such as 5, but got"),
        (MADE_UP, {"count": True}, "`count` of `made-up` to be a whole number, such as 5, but got"),
        (MADE_UP, {"on": 1}, "`on` of `made-up` to be true or false, such as true, but got 1"),
        (MADE_UP, {"weight": True}, "`weight` of `made-up` to be a number, such as 1.0, but got"),
        (MADE_UP, {"weight": "much"}, "`weight` of `made-up` to be a number, such as 1.0, but"),
        (
            MADE_UP,
            {"weight": -0.1},
            "`weight` of `made-up` to be a finite number of at least 0, but",
        ),
        (MADE_UP, {"k": -1}, "`k` of `made-up` to be a finite number of at least 0, but got -1"),
        (
            MADE_UP,
            {"count": float("inf")},
            "`count` of `made-up` to be a finite number of at least 0",
        ),
    ],
)
def test_what_an_option_cannot_be_is_refused(
    method: Method, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as refusal:
        method.complete(given)
    assert sentence in str(refusal.value)


def test_departures_are_what_the_paper_has_otherwise() -> None:
    assert list(MADE_UP.departures(MADE_UP.complete({}))) == [
        "weight = 1.0, 2.0 in the paper",
        "kind = plain, fancy in the paper: it is another",
        "it is made up",
    ]
    assert MADE_UP.default_departures() == list(MADE_UP.departures(MADE_UP.complete({})))
    assert list(MADE_UP.departures(MADE_UP.complete({}), formula_only=True)) == [
        "kind = plain, fancy in the paper: it is another",
        "it is made up",
    ]
    fancy = MADE_UP.complete({"kind": "fancy", "weight": 2.0})
    assert list(MADE_UP.departures(fancy)) == ["floor = 0.5, 0.0 in the paper", "it is made up"]
    assert list(MADE_UP.departures(MADE_UP.complete({"preset": "paper"}))) == ["it is made up"]
    held_out = dataclasses.replace(BARE, needs=lambda _: Needs(held_out=True))
    assert HELD_OUT == 0.1
    told = ["holds out 10% of the training samples"]
    assert list(held_out.departures({})) == told
    elodi = METHODS["elodi"].complete({"preset": "paper", "guide": "calibrated"})
    assert list(METHODS["elodi"].departures(elodi))[-1:] == told


def test_needs_are_said_in_words_and_revisions_counted() -> None:
    assert BARE.needed() == ""
    needs = dataclasses.replace(BARE, needs=lambda _: Needs(members=Members(count=2), old=True))
    assert needs.needed() == f"{NEEDS['old']}, {NEEDS['members']}"
    revised = dataclasses.replace(
        BARE,
        revisions=(
            Revision(words="one", where=frozenset({"clip"})),
            Revision(words="two", where=frozenset({"clip", "new_classes"})),
        ),
    )
    facts = [set(), {"clip"}, {"new_classes"}, {"clip", "new_classes", "other_model"}]
    assert [revised.formula(some) for some in facts] == [0, 1, 0, 2]


def test_values_are_written_as_in_a_configuration() -> None:
    assert [format_value(value) for value in (True, False, 0.5, 3, "mean")] == [
        *("true", "false", "0.5", "3", "mean")
    ]


def test_a_number_is_no_word_and_no_truth() -> None:
    setting = scene().setting({"weight": 2, "on": True, "kind": "plain", "k": None})
    assert setting.number("weight") == 2.0
    assert isinstance(setting.number("weight"), float)
    assert setting.word("kind") == "plain"
    for name in ("on", "kind", "k"):
        with pytest.raises(InputError, match=f"Expected `{name}` to be a number, but got"):
            setting.number(name)


def test_the_name_of_a_method_may_add_to_it() -> None:
    assert method_of("fd-lm") == (METHODS["fd-lm"], {})
    assert method_of("codistill-skl+skl") == (METHODS["codistill-skl"], {"plus": "skl"})
    with pytest.raises(InputError, match=r"Expected `codistill-skl` without an addition, but got"):
        method_of("codistill-skl+more")
    with pytest.raises(InputError, match=r"Expected `elodi` without an addition, but got '\+mean'"):
        method_of("elodi+mean")
    with pytest.raises(InputError, match="Expected a method, but got 'fd-ml'; did you mean fd-"):
        method_of("fd-ml")


ELODI = METHODS["elodi"].complete({})


def test_stored_views_are_read_from_the_options() -> None:
    assert views_of(ELODI, classes=10) is None
    assert views_of({}, classes=10) is None
    assert views_of({**ELODI, "views": 3}, classes=10) == ViewOptions(
        count=3, top=None, kept="float16"
    )
    assert views_of({"views": 1}, classes=10) == ViewOptions(count=1, top=None, kept="float16")
    most = {**ELODI, "views": 1, "views_top": 9, "views_dtype": "float32"}
    assert views_of(most, classes=10) == ViewOptions(count=1, top=9, kept="float32")
    assert views_of({"views": 1, "views_top": 1}, classes=2**16) is not None
    many = {"views": 1, "views_dtype": "float32", "views_top": 1}
    assert views_of(many, classes=2**16 + 1) is not None
    assert views_of({"views": 1}, classes=2**16 + 1) is not None


@pytest.mark.parametrize(
    ("given", "classes", "sentence"),
    [
        ({"views_top": 2}, 10, "Expected `views_top`"),
        ({"views_dtype": "float32"}, 10, "Expected `views_dtype`"),
        *(
            ({"views": wrong}, 10, "Expected `views` to be a whole number of at least 1 or none")
            for wrong in (0, True, 1.5)
        ),
        ({"views": 1, "online": False}, 10, "Expected `views` with an ensemble that sees"),
        *(
            ({"views": 1, "views_top": wrong}, 10, "to be a whole number from 1 to 9 or none")
            for wrong in (0, 10, True, 2.0)
        ),
        ({"views": 1, "views_top": 4}, 2**16 + 1, "in float16 with up to 65,536 classes"),
    ],
)
def test_views_that_cannot_be_stored_are_refused(
    given: dict[str, Any], classes: int, sentence: str
) -> None:
    with pytest.raises(InputError) as refusal:
        views_of({**ELODI, **given}, classes=classes)
    assert sentence in str(refusal.value)


def without(at: Scene, **missing: Any) -> Any:
    """A way to build a method in a setting that lacks something."""

    def made(name: str, **options: Any) -> Objective:
        method, _ = method_of(name)
        complete = {**method.complete({}), **options}
        return method.build(dataclasses.replace(at.setting(complete), **missing))

    return made


@pytest.mark.parametrize(
    ("name", "options", "missing", "sentence"),
    [
        ("elodi", {}, {"members": None}, "Expected `elodi` to have an ensemble, but got none."),
        ("elodi", {"k": 2.5}, {}, "Expected `k` to be a whole number or none, but got 2.5."),
        ("elodi", {"k": True}, {}, "Expected `k` to be a whole number or none, but got True."),
        ("skl", {"k": 2.5}, {}, "Expected `k` to be a whole number or none, but got 2.5."),
        ("entropy", {"k": True}, {}, "Expected `k` to be a whole number or none, but got True."),
        ("elodi", {"alpha": 1.1}, {}, "Expected `alpha` to be a share from 0 to 1, but got 1.1."),
        ("elodi", {"legacy": -0.1}, {}, "Expected `legacy` to be a share from 0 to 1"),
        ("elodi", {"views": 2}, {"views": None}, "Expected a way to store the ensemble's views"),
        ("elodi", {"online": False}, {"stored": None}, "Expected a way to store the ensemble's lo"),
        ("bu-cr", {}, {"held_out": None}, "Expected held-out samples to estimate the confusion"),
        (
            "ewc",
            {},
            {"held_out": None},
            "Expected held-out samples to measure the importance of weights",
        ),
        ("mixout", {"share": 1.0}, {}, "Expected `share` to be at least 0 and below 1, but got 1."),
        (
            "mixout",
            {"share": -0.1},
            {},
            "Expected `share` to be at least 0 and below 1, but got -0.",
        ),
        ("fd-lm", {"focus": -1.0}, {}, "Expected `focus` to be a number of at least 0"),
    ],
)
def test_what_an_objective_cannot_be_built_from_is_refused(
    name: str, options: dict[str, Any], missing: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as refusal:
        without(scene("nets"), **missing)(name, **options)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 1.0}, {"legacy": 1.0}, {"k": None}])
def test_shares_may_be_nothing_and_all(options: dict[str, Any]) -> None:
    assert build("elodi", options, scene()).replayable


def test_what_a_run_must_know_of_an_objective() -> None:
    at = scene()
    usual = build("fd-lm", {}, at)
    assert not usual.needs_features
    assert usual.replayable
    assert usual.views is None
    assert usual.forward is None
    assert not list(usual.trained.parameters())
    assert usual.state() == {}
    assert not build("codistill-ce", {}, at).replayable
    assert build("codistill-skl", {}, at).replayable
    assert build("codistill-ce", {"updates": "joint"}, at).replayable
    assert not build("codistill-skl", {"updates": "independent"}, at).replayable
    stored = build("elodi", {"views": 2}, at)
    assert stored.views == 2
    assert build("ract", {}, scene("features")).needs_features
    assert build("bct", {}, scene("features")).needs_features


def test_texts_and_features_that_are_not_there() -> None:
    at = scene("features")
    step = Step(
        inputs=at.inputs,
        target=at.target,
        places=torch.arange(len(at.target)),
        logits=at.student(at.inputs),
        features=None,
        number=0,
        model=at.student,
    )
    with pytest.raises(InputError, match="Expected the model to return features, but got none"):
        build("bct", {}, at).parts(step)
    texts = dataclasses.replace(
        scene("nets").setting(options_of("ewc", {})),
        held_out=lambda: iter([({"input_ids": at.inputs}, at.target)]),
    )
    with pytest.raises(InputError, match="Expected vectors or images for `ewc`, but got texts"):
        METHODS["ewc"].build(texts)


def test_label_smoothing_is_of_the_task() -> None:
    at = scene(smoothing=0.3)
    setting = at.setting(options_of("none", {}))
    logits = at.student(at.inputs)
    expected = torch.nn.functional.cross_entropy(logits, at.target, label_smoothing=0.3)
    assert task_loss(setting, logits, at.target) == expected


def test_a_refused_amount_names_the_edge() -> None:
    assert METHODS["fd-lm"].complete({"focus": 0})["focus"] == 0.0
    assert METHODS["elodi"].complete({"members": 0})["members"] == 0


@pytest.mark.parametrize("training", [True, False])
def test_counting_votes_leaves_the_student_in_its_mode(training: bool) -> None:
    at = scene()
    at.student.train(training)
    build("bu-cr", {}, at).after_epoch()
    assert at.student.training == training


def test_options_that_make_another_equation_are_told_from_amounts() -> None:
    found = {
        name: [
            option.name for option in method.options if option.printed and option.printed.formula
        ]
        for name, method in METHODS.items()
    }
    assert {name: options for name, options in found.items() if options} == {
        "kd": ["direction", "t_squared"],
        "fd-kl": ["direction", "t_squared"],
        "fd-lm": ["class_reduction", "filter"],
        "elodi": ["margin", "class_reduction"],
        "skl": ["floor"],
        **{
            f"codistill-{agreement}": ["updates", "ramp_kind", "floor"]
            for agreement in ("ce", "skl", "l1")
        },
    }


def test_another_model_is_asked_as_the_student_is() -> None:
    class Talkative(torch.nn.Module):
        """As models of texts answer: by names, and with more than logits."""

        def forward(self, **inputs: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=inputs["ids"] * 2.0)

    at = scene()
    ids = torch.tensor([[1.0], [3.0]])
    step = Step(
        inputs={"ids": ids},
        target=at.target,
        places=torch.arange(2),
        logits=ids,
        features=None,
        number=0,
        model=at.student,
    )
    assert torch.equal(step.call(Talkative()), 2 * ids)
    assert torch.equal(step.call(OldModel(Talkative())), 2 * ids)
    plain = dataclasses.replace(step, inputs=at.inputs)
    assert torch.equal(plain.call(OldModel(at.olds[0])), at.olds[0](at.inputs))
    assert torch.equal(plain.call(at.olds[0]), at.olds[0](at.inputs))


def test_a_model_without_weights_has_none_to_keep_near() -> None:
    class Bare(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs

    at = scene()
    at.student, at.olds = Bare(), [Bare()]
    objective = build("l2-sp", {}, at)
    step = Step(
        inputs=at.inputs,
        target=at.target,
        places=torch.arange(len(at.target)),
        logits=torch.zeros(len(at.target), 13),
        features=None,
        number=0,
        model=at.student,
    )
    with pytest.raises(InputError, match="Expected the model to have parameters, but got none"):
        objective.parts(step)
