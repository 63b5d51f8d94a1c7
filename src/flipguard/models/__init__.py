"""Models by name: flipguard's own small networks, and those of timm, torchvision, Transformers.

>>> import torch
>>> from flipguard.models import build_model, with_features
>>> model = build_model("resnet20", classes=10, input_shape=(3, 32, 32), seed=0)
>>> logits, features = with_features(model)(torch.zeros(2, 3, 32, 32))
>>> logits.shape, features.shape
(torch.Size([2, 10]), torch.Size([2, 64]))
"""

from __future__ import annotations

from flipguard.models.calling import Classified, Inputs, classify, head_of, with_features
from flipguard.models.checkpointing import checkpoint_blocks
from flipguard.models.describe import Description, architecture, describe, same_layout
from flipguard.models.hugging_face import encode_texts, tokenizer_for
from flipguard.models.registry import MODELS, ModelRow, build_model
from flipguard.specs import ModelOption

__all__ = [
    "MODELS",
    "Classified",
    "Description",
    "Inputs",
    "ModelOption",
    "ModelRow",
    "architecture",
    "build_model",
    "checkpoint_blocks",
    "classify",
    "describe",
    "encode_texts",
    "head_of",
    "same_layout",
    "tokenizer_for",
    "with_features",
]
