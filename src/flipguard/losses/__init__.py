"""Losses against negative flips, each as a module and as a function.

Each is one term to add to the task's loss. All take logits with the classes on the last axis, and
all arguments by name.

>>> import torch
>>> import torch.nn.functional as F
>>> from flipguard.losses import FocalDistillation
>>> pull = FocalDistillation(base=1.0, focus=5.0, distance="logits")
>>> logits, old_logits = torch.randn(8, 10, requires_grad=True), torch.randn(8, 10)
>>> target = torch.randint(10, (8,))
>>> loss = F.cross_entropy(logits, target) + pull(new=logits, old=old_logits, target=target)
>>> loss.backward()
"""

from __future__ import annotations

from flipguard.losses.bayes import (
    BayesianDecision,
    BayesianImitation,
    BayesianUpdate,
    bayesian_imitation,
    bayesian_update,
    estimate_confusion,
)
from flipguard.losses.churn import (
    CoDistillation,
    EntropyRegularizer,
    Ramp,
    UniformDivergence,
    codistillation,
    entropy_regularizer,
    uniform_divergence,
)
from flipguard.losses.classes import SharedClasses
from flipguard.losses.compatible import (
    BackwardCompatible,
    RegressionAlleviating,
    backward_compatible,
    regression_alleviating,
)
from flipguard.losses.dissonance import (
    Muscle,
    NaiveCongruence,
    NewError,
    StrictImitation,
    muscle,
    naive_congruence,
    new_error,
    strict_imitation,
)
from flipguard.losses.distillation import (
    FocalDistillation,
    KnowledgeDistillation,
    focal_distillation,
    knowledge_distillation,
)
from flipguard.losses.inhibition import LogitDifferenceInhibition, logit_difference_inhibition

__all__ = [
    "BackwardCompatible",
    "BayesianDecision",
    "BayesianImitation",
    "BayesianUpdate",
    "CoDistillation",
    "EntropyRegularizer",
    "FocalDistillation",
    "KnowledgeDistillation",
    "LogitDifferenceInhibition",
    "Muscle",
    "NaiveCongruence",
    "NewError",
    "Ramp",
    "RegressionAlleviating",
    "SharedClasses",
    "StrictImitation",
    "UniformDivergence",
    "backward_compatible",
    "bayesian_imitation",
    "bayesian_update",
    "codistillation",
    "entropy_regularizer",
    "estimate_confusion",
    "focal_distillation",
    "knowledge_distillation",
    "logit_difference_inhibition",
    "muscle",
    "naive_congruence",
    "new_error",
    "regression_alleviating",
    "strict_imitation",
    "uniform_divergence",
]
