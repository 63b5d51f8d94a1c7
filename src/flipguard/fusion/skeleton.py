"""The parameters and buffers of m members, stacked, under the names that they have in a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from flipguard.fusion.layout import stacked

Maker = Callable[[], nn.Module]


class Holder(nn.Module):
    """Holds tensors and other holders, and does nothing."""


def skeleton(members: Sequence[nn.Module], makers: Mapping[str, Maker]) -> nn.Module:
    """A tree of modules shaped as a member's, whose tensors are [m, ...].

    `makers` says by path which modules do something; the others only hold. Tensors and modules
    that a member has under several names are shared here too.
    """
    trees = [dict(member.named_modules(remove_duplicate=False)) for member in members]
    made: dict[int, nn.Module] = {}
    parameters: dict[int, nn.Parameter] = {}
    root = nn.Module()
    for path, module in trees[0].items():
        if id(module) not in made:
            built = makers.get(path, Holder)()
            _fill(built, [tree[path] for tree in trees], parameters)
            made[id(module)] = built
        _put(root, path, made[id(module)])
    return made[id(trees[0][""])]


def _fill(
    built: nn.Module, modules: Sequence[nn.Module], parameters: dict[int, nn.Parameter]
) -> None:
    first = modules[0]
    for name, parameter in first._parameters.items():
        if parameter is None:
            built.register_parameter(name, None)
            continue
        if id(parameter) not in parameters:
            values = stacked([_tensor(module._parameters[name]) for module in modules])
            parameters[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
        built.register_parameter(name, parameters[id(parameter)])
    for name, buffer in first._buffers.items():
        kept = name not in first._non_persistent_buffers_set
        values_or_none = None
        if buffer is not None:
            values_or_none = stacked([_tensor(module._buffers[name]) for module in modules])
        built.register_buffer(name, values_or_none, persistent=kept)


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    if not path:
        root.add_module("root", module)
        return
    at = root.get_submodule("root")
    *parents, name = path.split(".")
    for parent in parents:
        at = at.get_submodule(parent)
    at.add_module(name, module)


def _tensor(value: Tensor | None) -> Tensor:
    assert value is not None  # members have the same layout
    return value
