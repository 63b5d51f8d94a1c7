"""
Intervals, tests and sample sizes for paired classifiers: pure functions of counts.

All of it is vectorised over leading axes and free of state. Undefined is nan, never 0.
"""

from flipguard.statistics.clusters import (
    cluster_replicates,
    design_effect,
    distinct_rows,
    effective_degrees,
    leave_one_out,
    p_value_below,
    upper_end,
)
from flipguard.statistics.hypotheses import (
    benjamini_hochberg,
    binomial_quantile,
    corrected,
    holm,
    mcnemar,
    p_value_by_inversion,
    samples_to_decide,
    skewed,
)
from flipguard.statistics.means import (
    bounded_mean,
    calibration_error,
    mean_variance,
    padded_mean,
)
from flipguard.statistics.rates import (
    equivalence_p,
    non_inferiority_p,
    paired_difference,
    paired_difference_variance,
    proportion_variance,
    wilson,
)
from flipguard.statistics.ratios import (
    log_paired_ratio_variance,
    log_relative_negative_flip_rate_variance,
    paired_ratio,
    relative_negative_flip_rate,
)
from flipguard.statistics.seeds import prediction_interval, retrain_gain, retrain_rate

__all__ = [
    "benjamini_hochberg",
    "binomial_quantile",
    "bounded_mean",
    "calibration_error",
    "cluster_replicates",
    "corrected",
    "design_effect",
    "distinct_rows",
    "effective_degrees",
    "equivalence_p",
    "holm",
    "leave_one_out",
    "log_paired_ratio_variance",
    "log_relative_negative_flip_rate_variance",
    "mcnemar",
    "mean_variance",
    "non_inferiority_p",
    "p_value_below",
    "p_value_by_inversion",
    "padded_mean",
    "paired_difference",
    "paired_difference_variance",
    "paired_ratio",
    "prediction_interval",
    "proportion_variance",
    "relative_negative_flip_rate",
    "retrain_gain",
    "retrain_rate",
    "samples_to_decide",
    "skewed",
    "upper_end",
    "wilson",
]
