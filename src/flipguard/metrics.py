"""The table of metrics. Each row is data; its value is a pure function of `FlipCounts`.

Comparison, intervals, command line, JSON, docs and tests all read this table. How a kind of metric
is computed belongs to `flipguard.metric_kinds`.
"""

from __future__ import annotations

import math

from flipguard.class_metrics import CLASS_METRICS
from flipguard.counts import MOST_DIVERGENCE, NO_ANSWER, SIDES, Side, grade_name
from flipguard.metric import (
    Metric,
    compared_rows,
    half_the_classes,
    inputs,
    largest_entropy,
    most_divergence,
    ones,
    wrong_new,
    wrong_old,
)
from flipguard.metric_kinds import (
    CalibrationErrorKind,
    ControlRatioKind,
    GainKind,
    MeanKind,
    PValueKind,
    RateKind,
    RelativeRateKind,
)
from flipguard.statistics import mcnemar

_REASONS = {
    "error": "that ended in an error",
    "refused": "that the model refused to answer",
    "unparsed": "whose answer could not be read",
}


def _no_answer_share(side: Side, reason: str) -> Metric:
    return Metric(
        name=f"{reason}_share_{side}",
        sentence=f"The share of samples {_REASONS[reason]} ({side} model).",
        formula=f"graded_{reason}_{side} / n",
        needs=inputs("grades"),
        better="lower",
        kind=RateKind(lambda c: c[grade_name(side, reason)], lambda c: c.rows),
        use="To see whether negative flips are wrong answers or missing ones. A rule can limit it.",
        paper="none",
        pitfalls="Needs `--correct`. These samples count as not right, so they are part of "
        f"`error_rate_{side}` too.",
    )


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="error_rate_old",
            sentence="How often the old model is wrong.",
            formula="wrong_old / n",
            needs=inputs("target"),
            better="lower",
            kind=RateKind(wrong_old, lambda c: c.labelled),
            use="As the starting point: every flip is relative to the old model.",
            paper="all three",
            pitfalls="Two error rates with overlapping intervals can still differ significantly, "
            "because both models saw the same samples. Judge `accuracy_gain`, which uses the "
            "pairs.",
        ),
        Metric(
            name="error_rate_new",
            sentence="How often the new model is wrong.",
            formula="wrong_new / n",
            needs=inputs("target"),
            better="lower",
            kind=RateKind(wrong_new, lambda c: c.labelled),
            use="The share of samples that the new model gets wrong.",
            paper="all three",
            pitfalls="As for `error_rate_old`.",
        ),
        Metric(
            name="accuracy_gain",
            sentence="The new model's accuracy minus the old model's.",
            formula="error_rate_old - error_rate_new",
            needs=inputs("target"),
            better="higher",
            kind=GainKind(),
            range=(-1.0, 1.0),
            use="For non-inferiority rules (`min = -0.005`) and equivalence rules (`min` and "
            "`max`). Positive means that the new model is better.",
            paper="PCT, figure 2",
            pitfalls="A gain does not say how much breaks: +1 point can mean 1 % fixed and 0 % "
            "broken, or 8 % fixed and 7 % broken.",
        ),
        Metric(
            name="negative_flip_rate",
            sentence="How often the old model is right and the new one wrong.",
            formula="negative_flips / n",
            needs=inputs("target"),
            better="lower",
            kind=RateKind(lambda c: c["negative_flip"], lambda c: c.labelled),
            use="The main metric: the share of all samples that the old model gets right and the "
            "new one gets wrong.",
            paper="PCT, equation 2",
            pitfalls="It cannot exceed `error_rate_new`, so it is small for accurate models. To "
            "compare models of different accuracy, use `relative_negative_flip_rate`.",
        ),
        Metric(
            name="positive_flip_rate",
            sentence="How often the old model is wrong and the new one right.",
            formula="positive_flips / n",
            needs=inputs("target"),
            better="higher",
            kind=RateKind(lambda c: c["positive_flip"], lambda c: c.labelled),
            use="The share of all samples that the update fixes. Accuracy gain is this rate minus "
            "the negative flip rate.",
            paper="PCT, section 3.1",
            pitfalls="Many positive flips do not compensate users who relied on a sample that is "
            "now broken.",
        ),
        Metric(
            name="flip_rate",
            sentence="How often exactly one of the two models is right.",
            formula="negative_flip_rate + positive_flip_rate",
            needs=inputs("target"),
            better="lower",
            kind=RateKind(lambda c: c["negative_flip"] + c["positive_flip"], lambda c: c.labelled),
            use="The share of samples that become wrong or become right. For changes that should "
            "not change any result, such as quantization or another runtime.",
            paper="follows from PCT's definitions",
            pitfalls="Fixed samples count like broken ones. A change from one wrong class to "
            "another does not count; `churn` has it.",
        ),
        Metric(
            name="relative_negative_flip_rate",
            sentence="Negative flips divided by those of independent models as accurate as these.",
            formula="negative_flip_rate / ((1 - error_rate_old) * error_rate_new)",
            needs=inputs("target"),
            better="lower",
            kind=RelativeRateKind(),
            range=(0.0, math.inf),
            use="To compare updates whose models differ in accuracy. Independent models have 100 "
            "%; 0 % means no negative flip.",
            paper="PCT, equation 11",
            pitfalls="Undefined if the old model is never right or the new one never wrong. It "
            "cannot exceed 1 divided by the old model's accuracy, so the gate does not accept a "
            "higher `max`. The papers print it in percent; here it is a rate like the others.",
        ),
        Metric(
            name="negative_flip_impact",
            sentence="The share of the new model's errors that the old model does not make.",
            formula="negative_flips / wrong_new",
            needs=inputs("target"),
            better="lower",
            kind=RateKind(lambda c: c["negative_flip"], wrong_new),
            use="The share of the new model's errors that are on samples the old model got right.",
            paper="follows from PCT's definitions",
            pitfalls="It can rise when the new model gets better, because its few errors are then "
            "more likely to be new ones.",
        ),
        Metric(
            name="churn",
            sentence="How often the two models predict different classes, right or wrong.",
            formula="different_labels / n",
            needs=inputs("label"),
            better="lower",
            kind=RateKind(lambda c: c.different, compared_rows),
            use="If targets are unknown (live traffic), or if every change has a cost: caches, "
            "human review, downstream models.",
            paper="Reproducibility, definition 1",
            pitfalls="Churn counts improvements too. It is at most the sum of the two error rates.",
        ),
        Metric(
            name="churn_correct",
            sentence="Churn among the samples that the old model gets right.",
            formula="negative_flips / right_old",
            needs=inputs("target", "label"),
            better="lower",
            kind=RateKind(lambda c: c.answers[..., 1], lambda c: c.answers[..., :2].sum(axis=-1)),
            use="The share of samples the old model got right whose prediction changed, that is, "
            "broke.",
            paper="Reproducibility, table 2",
            pitfalls="It equals `1 - backward_trust_compatibility`, except for graded rows, where "
            "another answer may be right too.",
        ),
        Metric(
            name="churn_incorrect",
            sentence="Churn among the samples that the old model gets wrong.",
            formula="(positive_flips + wrong_different) / wrong_old",
            needs=inputs("target", "label"),
            better="neither",
            kind=RateKind(lambda c: c.answers[..., 3], lambda c: c.answers[..., 2:].sum(axis=-1)),
            use="The share of samples the old model got wrong whose prediction changed.",
            paper="Reproducibility, table 2",
            pitfalls="High is neither good nor bad: fixed errors and errors with another wrong "
            "class both count.",
        ),
        Metric(
            name="wrong_to_wrong",
            sentence="How often both models are wrong and predict different classes.",
            formula="wrong_different / n",
            needs=inputs("target", "label"),
            better="lower",
            kind=RateKind(lambda c: c["wrong_different"], lambda c: c.labelled),
            use="Changes that users notice although accuracy stays the same: the model is wrong "
            "in another way.",
            paper="part of churn (Reproducibility, definition 1)",
            pitfalls="Zero with two classes, because there is only one wrong class.",
        ),
        Metric(
            name="surrogate_churn",
            sentence="How far scores move, each divided by the sample's largest score.",
            formula="mean(sum(|(p_old / max p_old)^a - (p_new / max p_new)^a|)) / 2",
            needs=inputs("old scores", "new scores"),
            better="lower",
            kind=MeanKind("surrogate", half_the_classes, guard_low=False),
            range=(0.0, math.inf),
            use="How far scores move, also if the label stays the same. Less noisy than churn on "
            "few samples.",
            paper="Reproducibility, definition 2, with exponent a = 1",
            pitfalls="The value of one sample can be as large as half the number of classes (of "
            "both models together). So with many classes the mean can exceed 1, and a narrow "
            "interval needs many samples: for 100 unchanged samples the upper end is 0.18 with 10 "
            "classes and 18 with 1,000. As the exponent (`--exponent`) grows, the metric "
            "approaches churn. A class that a model does not know has probability 0 in that model.",
        ),
        Metric(
            name="kl_divergence",
            sentence="Kullback-Leibler divergence of the new model's probabilities from the old's.",
            formula="mean(sum(p_old * log(p_old / max(p_new, 1e-12))))",
            needs=inputs("old scores", "new scores"),
            better="lower",
            kind=MeanKind(
                "divergence",
                most_divergence,
                guard_low=False,
                whole=lambda c: c["divergence_rows"],
            ),
            range=(0.0, MOST_DIVERGENCE),
            percent=False,
            use="How far all probabilities move, in nats. The usual measure for quantized and "
            "distilled models.",
            paper="Kullback and Leibler, 1951",
            pitfalls="Only classes that both models know are used, and their probabilities are "
            "divided by their sum. Samples on which one of the models gives these classes no "
            "probability at all are left out. One sample can have up to 27.6 nats, where new has "
            "a probability of 0 for a class that old is sure of. The interval allows for such "
            "samples, so its upper end is low only with many samples.",
        ),
        Metric(
            name="backward_trust_compatibility",
            sentence="The share of the old model's right answers that the new model keeps.",
            formula="both_right / right_old",
            needs=inputs("target"),
            better="higher",
            kind=RateKind(lambda c: c["both_right"], lambda c: c.old_right),
            use="The complement of `churn_correct`; the literature on compatibility uses this "
            "form.",
            paper="Bansal et al., 2019; Srivastava et al., 2020",
            pitfalls="Near 1 for accurate models, so compare its distance from 1.",
        ),
        Metric(
            name="backward_error_compatibility",
            sentence="The share of the new model's errors that the old model also makes.",
            formula="both_wrong / wrong_new",
            needs=inputs("target"),
            better="higher",
            kind=RateKind(lambda c: c["wrong_same"] + c["wrong_different"], wrong_new),
            use="The share of the new model's errors that users already know from the old model.",
            paper="Srivastava et al., 2020",
            pitfalls="Divided by the errors of the *new* model. A well-known library divides by "
            "those of the old one.",
        ),
        Metric(
            name="expected_calibration_error_old",
            sentence="How far the old model's confidence is from its accuracy.",
            formula="sum(|right - confidence| over 15 equal-width bins of the top probability) / n",
            needs=inputs("target", "old scores"),
            better="lower",
            kind=CalibrationErrorKind("old"),
            use="Shows whether a confidence of 0.9 means right in 90 % of cases.",
            paper="Reproducibility (its study of calibration); Guo et al., 2017",
            pitfalls="For well-calibrated models and few samples, the plain estimate is too high. "
            "The interval allows for this and is then wide.",
        ),
        Metric(
            name="expected_calibration_error_new",
            sentence="How far the new model's confidence is from its accuracy.",
            formula="sum(|right - confidence| over 15 equal-width bins of the top probability) / n",
            needs=inputs("target", "new scores"),
            better="lower",
            kind=CalibrationErrorKind("new"),
            use="An update that changes calibration changes the effect of every threshold on its "
            "confidence.",
            paper="Reproducibility (its study of calibration); Guo et al., 2017",
            pitfalls="As for the old model's.",
        ),
        Metric(
            name="margin_old",
            sentence="The old model's highest probability minus its second highest.",
            formula="mean(p_old(1st) - p_old(2nd))",
            needs=inputs("old scores"),
            better="neither",
            kind=MeanKind("old_margin", ones, guard_low=True),
            use="Models with a large margin churn less (lemma 2 of the paper).",
            paper="Reproducibility, section 2.4",
            pitfalls="The difference between the two most probable classes. The true class is not "
            "used, so a large margin can belong to a wrong prediction.",
        ),
        Metric(
            name="margin_new",
            sentence="The new model's highest probability minus its second highest.",
            formula="mean(p_new(1st) - p_new(2nd))",
            needs=inputs("new scores"),
            better="neither",
            kind=MeanKind("new_margin", ones, guard_low=True),
            use="Compare it with the old model's: a lower margin predicts churn.",
            paper="Reproducibility, section 2.4",
            pitfalls="As for the old model's.",
        ),
        Metric(
            name="entropy_old",
            sentence="The mean entropy of the old model's probabilities, in nats.",
            formula="mean(-sum(p_old * log(p_old)))",
            needs=inputs("old scores"),
            better="neither",
            kind=MeanKind("old_entropy", lambda c: largest_entropy(c, "old"), guard_low=True),
            range=(0.0, math.inf),
            percent=False,
            use="How undecided the model is among all classes: 0 if it is always sure, and the "
            "logarithm of the number of classes if all are equally likely.",
            paper="Reproducibility, figures 1 and 3",
            pitfalls="Depends on the number of classes and on calibration. A model that is sure "
            "and wrong has a low entropy too.",
        ),
        Metric(
            name="entropy_new",
            sentence="The mean entropy of the new model's probabilities, in nats.",
            formula="mean(-sum(p_new * log(p_new)))",
            needs=inputs("new scores"),
            better="neither",
            kind=MeanKind("new_entropy", lambda c: largest_entropy(c, "new"), guard_low=True),
            range=(0.0, math.inf),
            percent=False,
            use="Compare it with the old model's: models whose predictions have a lower entropy "
            "churn less.",
            paper="Reproducibility, figures 1 and 3",
            pitfalls="As for the old model's.",
        ),
        Metric(
            name="logit_displacement",
            sentence="How far the logits of a sample move.",
            formula="mean(||logits_new - logits_old||_2)",
            needs=inputs("logits"),
            better="lower",
            kind=MeanKind("distance", None, guard_low=False),
            range=(0.0, math.inf),
            percent=False,
            use="The distance of the two models in logit space. ELODI explains negative flips by "
            "it.",
            paper="ELODI, section 3.1",
            pitfalls="Depends on the scale of the logits, so compare it only between models of "
            "one recipe. It uses only classes that both models know. Logits have no bound, so the "
            "interval has only a lower end: a rule with a `max` can fail, but it can pass only "
            'with `judge = "point"`.',
        ),
        Metric(
            name="mcnemar_p",
            sentence="Probability of flips at least this uneven if both kinds were equally likely.",
            formula="two-sided exact binomial test of negative against positive flips",
            needs=inputs("target"),
            better="neither",
            kind=PValueKind(lambda c: mcnemar(c["negative_flip"], c["positive_flip"])),
            percent=False,
            use="Tests whether the two models differ in accuracy. A small value means that they "
            "do.",
            paper="McNemar, 1947",
            pitfalls="It does not measure the size of the difference: with enough samples any "
            "difference is significant. A gate should limit `accuracy_gain`.",
        ),
        Metric(
            name="churn_ratio",
            sentence="The new model's churn divided by that of the untreated control.",
            formula="churn(old, new) / churn(old, control)",
            needs=inputs("label", "control"),
            better="lower",
            kind=ControlRatioKind("churn"),
            range=(0.0, math.inf),
            percent=False,
            use="Shows whether the treatment helped. Below 1, this update churns less than a "
            "plain retrain.",
            paper='the "no treatment" rows of all three papers',
            pitfalls="Needs `--control`. With one control it compares two models, and another "
            "seed can move it out of its interval. With several controls it is the ratio to their "
            "mean, and the interval allows for another seed.",
        ),
        Metric(
            name="negative_flip_ratio",
            sentence="The new model's negative flips divided by those of the untreated control.",
            formula="negative_flip_rate(old, new) / negative_flip_rate(old, control)",
            needs=inputs("target", "control"),
            better="lower",
            kind=ControlRatioKind("negative_flip"),
            range=(0.0, math.inf),
            percent=False,
            use="As `churn_ratio`, for negative flips: ELODI reports about one half.",
            paper='the "no treatment" rows of all three papers',
            pitfalls="Needs `--control` and targets. With one control it compares these two "
            "models, not their recipes, as `churn_ratio` does.",
        ),
        *CLASS_METRICS,
        *(_no_answer_share(side, reason) for reason in NO_ANSWER for side in SIDES),
    )
}
