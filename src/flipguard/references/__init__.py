"""What a new model is pulled towards while it trains, and that nothing of the training changes.

A reference is called with a batch and gives logits. It is no `torch.nn.Module`: a student that
holds one as an attribute keeps its own state dict, parameters and modules.
"""

from __future__ import annotations

from flipguard.references.ensemble import Ensemble
from flipguard.references.models import OldModel, Peer
from flipguard.references.reference import Reference
from flipguard.references.stored_logits import StoredLogits

__all__ = ["Ensemble", "OldModel", "Peer", "Reference", "StoredLogits"]
