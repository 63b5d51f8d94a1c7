"""Starting from an old model's weights; its classes may be fewer, or stand in another order.

Then rows of the head are taken over class by class, matched by name, and the rows of classes that
old lacks stay as the new model was initialised. All else is taken over as it is.
"""

from __future__ import annotations

from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.methods import Old
from flipguard.models import head_of, same_layout


def difference_of(old: Old, new: nn.Module) -> str | None:
    """Why new cannot start from old's weights, in words; None if it can."""
    was, now = old.model.state_dict(), new.state_dict()
    if old.classes is None:
        return same_layout(was, now)
    rows = _class_wise(old, new)
    one, other = ({n: t for n, t in state.items() if n not in rows} for state in (was, now))
    return same_layout(one, other)


def start_from(old: Old, new: nn.Module) -> None:
    """Gives new the weights of old that it can have, in place."""
    state: dict[str, Tensor] = dict(old.model.state_dict())
    if old.classes is not None:
        own = new.state_dict()
        known = [place for place, at in enumerate(old.classes.new_to_old) if at >= 0]
        of_old = [old.classes.new_to_old[place] for place in known]
        for name in _class_wise(old, new):
            rows = own[name].clone()
            rows[known] = state[name][of_old].to(rows)
            state[name] = rows
    new.load_state_dict(state)


def _class_wise(old: Old, new: nn.Module) -> frozenset[str]:
    """The tensors that have a row a class."""
    assert old.classes is not None
    was, now = old.model.state_dict(), new.state_dict()
    counts = old.classes.old_count, len(old.classes.new_to_old)
    if counts[0] == counts[1]:
        return _of_head(new, counts[1])
    return frozenset(
        name
        for name in was.keys() & now.keys()
        if (tuple(was[name].shape[:1]), tuple(now[name].shape[:1])) == (counts[:1], counts[1:])
        and was[name].shape[1:] == now[name].shape[1:]
    )


def _of_head(new: nn.Module, classes: int) -> frozenset[str]:
    """The head's tensors, if nothing else could have a row a class.

    Where old and new have equally many classes, shapes do not tell: a hidden layer may be as wide.
    Of flipguard's own networks, which know their inputs' shape, the head is known.
    """
    try:
        head = head_of(new)
    except InputError as problem:
        raise _unclear(f"{type(new).__name__} without one") from problem
    names = {id(parameter): name for name, parameter in new.named_parameters()}
    found = frozenset(names[id(parameter)] for parameter in head.parameters())
    rows = {name for name, tensor in new.state_dict().items() if tensor.shape[:1] == (classes,)}
    if rows - found and not hasattr(new, "input_shape"):
        raise _unclear(f"`{min(rows - found)}` of {type(new).__name__}, which has {classes} too")
    if found - rows:
        raise _unclear(f"`{min(found)}` of {type(new).__name__}, which has other rows")
    return found


def _unclear(got: str) -> InputError:
    return InputError(
        "Expected fine-tuning with old's classes in the same order, or a model with one linear "
        f"head, which alone has a row a class, but got {got}; give the data old's order."
    )
