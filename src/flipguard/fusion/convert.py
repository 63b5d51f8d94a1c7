"""From members to one network, by the first way that proves itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from flipguard.errors import InputError, printable
from flipguard.fusion.base import Fused
from flipguard.fusion.beside import Beside
from flipguard.fusion.checking import prove
from flipguard.fusion.packing import Packed
from flipguard.fusion.place import Refusal
from flipguard.fusion.stacking import Stacked
from flipguard.models import Inputs, same_layout

# Members that a way is tried on: all, but of large ones two, which cost seconds each.
LARGE, FEW = 20_000_000, 2
SAMPLES = 4  # in the batch on which a way is tried; batch normalisation needs several


def fuse(
    members: Sequence[nn.Module],
    *,
    example: Inputs | None = None,
    streams: int = 1,
    networks: int | None = None,
) -> Fused:
    """Members of one architecture as one network, which trains and answers as they would.

    Convolutional networks become one network of m groups; others are mapped over stacked
    parameters. Either way is first tried in float64 against the members themselves: logits,
    gradients and buffers. A network that neither way understands is refused.

    Args:
        members: Networks of one architecture, with weights of their own; they stay as they are.
        example: A batch of inputs, of which only the shape counts; flipguard's own networks know
            theirs, and need none.
        streams: As several networks side by side, so many of which a GPU computes at the same time.
        networks: How many, if not as many as streams; no more than there are members.

    >>> from flipguard.models import build_model
    >>> members = [build_model("mlp", classes=10, input_shape=(40,), seed=i) for i in range(3)]
    >>> fused = fuse(members)
    >>> fused(torch.zeros(5, 40)).shape, fused(torch.zeros(3, 5, 40)).shape
    (torch.Size([3, 5, 10]), torch.Size([3, 5, 10]))
    >>> list(fused.split()[1]) == list(members[1].state_dict())
    True
    """
    members = list(members)
    if streams < 1:
        raise InputError(
            f"Expected `streams` to be from 1 on, but got {streams}; 1 is one network."
        )
    _refuse_differences(members)
    batch = _example(members[0], example)
    numbers = sum(p.numel() for member in members for p in member.parameters())
    some_members = members[:FEW] if numbers > LARGE else members
    reasons: list[str] = []
    for way in (_packed, _stacked):
        try:
            with warnings.catch_warnings():
                # What torch cannot map it does in a loop, and says so: slower than no fusing.
                warnings.filterwarnings("error", "There is a performance drop")
                prove(lambda some, way=way: way(some, batch), some_members, batch)  # type: ignore[misc]
            parts = [way(some, batch) for some in _evenly(members, networks or streams)]
            return parts[0] if len(parts) == 1 else Beside(parts, streams=streams)
        except Refusal as refusal:
            reasons.append(str(refusal))
        except Exception as problem:  # vectorising runs into whatever a network does
            lines = str(problem).strip().splitlines() or [""]
            reasons.append(f"{type(problem).__name__}: {printable(lines[0]).rstrip('.')}")
    raise InputError(
        f"Expected a network that can be trained as {len(members)} at once, but "
        f"{type(members[0]).__name__} has {' and '.join(dict.fromkeys(reasons))}; train its "
        "members one by one (`--fuse off`)."
    )


def _evenly(members: Sequence[nn.Module], networks: int) -> Iterator[Sequence[nn.Module]]:
    """So many groups of neighbours, of which none has more than one member above another's."""
    count = min(networks, len(members))
    for part in range(count):
        yield members[part * len(members) // count : (part + 1) * len(members) // count]


def _packed(members: Sequence[nn.Module], batch: Inputs) -> Fused:
    if not isinstance(batch, Tensor) or not batch.is_floating_point():
        raise Refusal("inputs that are no images, signals or vectors")
    one = next((p for p in members[0].parameters() if p.is_floating_point()), torch.empty(0))
    return Packed(members, example=batch.to(one.device, one.dtype))


def _stacked(members: Sequence[nn.Module], batch: Inputs) -> Fused:
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
    return Stacked(members, sample_dims=int(first.dim()))


def _refuse_differences(members: Sequence[nn.Module]) -> None:
    if not members:
        raise InputError("Expected at least one member to fuse, but got none; give some.")
    for index, member in enumerate(members[1:], start=1):
        difference = same_layout(members[0], member)
        if difference is None and str(member) != str(members[0]):
            difference = "their layers differ"
        if difference is not None:
            raise InputError(
                f"Expected members of one architecture, but in members 0 and {index} {difference}; "
                "fuse members of the same kind."
            )


def _example(member: nn.Module, given: Inputs | None) -> Inputs:
    if isinstance(given, Mapping):
        return {name: one[:SAMPLES].detach().cpu() for name, one in given.items()}
    shape = getattr(member, "input_shape", None) if given is None else given.shape[1:]
    if shape is None:
        raise InputError(
            f"Expected an example of what {type(member).__name__} takes, but got none; pass "
            "`example=`, a batch of inputs."
        )
    if given is not None and not given.is_floating_point():
        return given[:SAMPLES].detach().cpu()
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))
