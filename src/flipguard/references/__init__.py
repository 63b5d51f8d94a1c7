"""Models and stored logits that a new model is pulled to. Training never changes them.

A reference is called with a batch and returns logits. It is not a `torch.nn.Module`, so a student
that has one as an attribute keeps its own state dict, parameters and modules.
"""

from __future__ import annotations

from flipguard.references.ensemble import Ensemble
from flipguard.references.models import OldModel, Peer
from flipguard.references.reference import Reference
from flipguard.references.stored_logits import StoredLogits

__all__ = ["Ensemble", "OldModel", "Peer", "Reference", "StoredLogits"]
