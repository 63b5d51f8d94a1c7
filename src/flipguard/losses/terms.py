"""What the modules round the losses have in common."""

from __future__ import annotations

from torch import nn

from flipguard.losses.inputs import Preset, one_of


class Term(nn.Module):
    """A loss as a module: options when it is made, tensors when it is called.

    Every term is to be added to the task's own loss, which none of them holds. ``term.compile()``
    fuses a term into a few kernels.
    """

    def extra_repr(self) -> str:
        """The options, as they would be typed."""
        options = ((name, value) for name, value in vars(self).items() if name != "training")
        return ", ".join(f"{name}={value!r}" for name, value in options if not name.startswith("_"))


def as_printed(preset: Preset | None) -> bool:
    """Whether a preset asks for what a paper prints."""
    if preset is not None:
        one_of("preset", preset, ("paper",))
    return preset == "paper"
