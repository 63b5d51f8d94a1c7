"""What a new model is pulled towards while it trains, and that nothing of the training changes.

A reference is called with a batch and gives logits. It is no `torch.nn.Module`: a student that
holds one as an attribute keeps its own state dict, parameters and modules.
"""

from __future__ import annotations

from flipguard.references.base import Reference
from flipguard.references.ensemble import Ensemble
from flipguard.references.old_model import OldModel
from flipguard.references.peer import Peer
from flipguard.references.stored import StoredLogits

__all__ = ["Ensemble", "OldModel", "Peer", "Reference", "StoredLogits"]
