"""Load weights of PyTorch."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.nn.conv_layers import _Conv

from .mxnet_versions import new_array
from .naming import named_blocks

# Gluon's names of parameters, with PyTorch's names.
_LEAVES = {
    "weight": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "alpha": "weight",
    "running_mean": "running_mean",
    "running_var": "running_var",
    "num_batches_tracked": "num_batches_tracked",
}
# Values of parameters that a norm of PyTorch may lack.
_DEFAULTS = {"gamma": 1.0, "beta": 0.0, "num_batches_tracked": 0.0}

_Modules = Dict[str, Dict[str, Any]]


def load_torch(
    net: gluon.Block, state_dict: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Load the weights of the same network in PyTorch.

    Modules with parameters match by name, or else by their order in the two networks. All shapes
    must fit. If a module is left over or does not fit, or if names contradict the order, nothing is
    loaded. A convolution of Gluon's layers with ``layout="NHWC"`` or ``"NDHWC"`` gets its
    weight transposed. A ``gluon.Constant`` keeps its value.

    Parameters
    ----------
    net : Block
        An initialized network, or a part of one, such as a backbone.
    state_dict : mapping of str to torch.Tensor or array
        The result of ``torch_net.state_dict()``, without modules that `net` does not have.
    names : mapping of str to str, optional
        Parts of `net`, and the matching parts of the PyTorch network, such as
        ``{"head": "classifier"}``. The modules in each part match as above. By default, the whole
        networks match.

    Returns
    -------
    dict of str to str
        For each parameter of `net`, the entry that it was loaded from. It is "" if the norm of
        PyTorch lacks the entry. Then a scale is 1, and a shift or count is 0.

    Raises
    ------
    ValueError
        If the two do not fit, or the match is ambiguous. The message names the modules.

    See Also
    --------
    update_statistics : Computes running variances again. PyTorch's are unbiased.
    """
    parameters = net._collect_params_with_prefix().items()
    ours = _modules("net", {n: p for n, p in parameters if not isinstance(p, gluon.Constant)})
    convolutions = (each for each in named_blocks(net) if isinstance(each, _Conv))
    layouts = {id(each.weight): each._kwargs["layout"] for each in convolutions}
    theirs = _modules("state_dict", state_dict)
    pairs: dict[str, str] = {}
    for our_part, their_part in (names or {}).items():
        pairs.update(
            _matched(_part("net", ours, our_part), _part("state_dict", theirs, their_part))
        )
    our_rest = {name: name for name in ours if name not in pairs}
    their_rest = {name: name for name in theirs if name not in pairs.values()}
    pairs.update(_matched(our_rest, their_rest))
    loaded, values = {}, []
    for our_name, their_name in pairs.items():
        for leaf, parameter in ours[our_name].items():
            layout = layouts.get(id(parameter), "")
            source, value = _value(
                our_name, leaf, parameter, layout, their_name, theirs[their_name]
            )
            loaded[_join(our_name, leaf)] = source
            values.append((parameter, value))
        used = {"num_batches_tracked", *(_LEAVES[leaf] for leaf in ours[our_name])}
        unused = sorted({*theirs[their_name]} - used)
        if unused:
            raise ValueError(f"{our_name} of net has no place for {their_name}.{unused[0]}")
    for parameter, value in values:
        parameter.set_data(new_array(value, mx.cpu(), parameter.dtype))
    return loaded


def _modules(source: str, entries: Mapping[str, Any]) -> _Modules:
    """Group the entries of `source` by module."""
    modules: _Modules = {}
    for name, value in entries.items():
        module, _, leaf = name.rpartition(".")
        if leaf not in _LEAVES or not hasattr(value, "shape"):
            hint = "" if source == "net" else ". Give torch_net.state_dict() without this entry"
            raise ValueError(
                f"{source} has {name} ({type(value).__name__}), which is no weight, bias or "
                f"running statistic{hint}"
            )
        modules.setdefault(module, {})[leaf] = value
    return modules


def _part(source: str, modules: _Modules, part: str) -> dict[str, str]:
    """Map the name of each module within a part of `source` to its full name."""
    found = {
        name[len(part) :].lstrip("."): name
        for name in modules
        if name == part or name.startswith(f"{part}.")
    }
    if not found:
        raise ValueError(f"names has {part!r}, but {source} has no such part with parameters")
    return found


def _matched(ours: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
    """Pair modules; the keys are names that may be the same in both."""
    if ours.keys() == theirs.keys():
        return {ours[name]: theirs[name] for name in ours}
    for our_name, their_name in zip(ours, theirs):
        if our_name == their_name:
            continue
        # A number also counts layers without parameters, so the libraries may differ in it.
        for name in (our_name, their_name):
            if name in ours and name in theirs and not name.rpartition(".")[2].isdecimal():
                raise ValueError(
                    f"{ours[our_name]} of net and {theirs[their_name]} are at the same place, but "
                    f"both networks have a {name}: say in `names` which modules match"
                )
    if len(ours) != len(theirs):
        longer, which = (ours, "net") if len(ours) > len(theirs) else (theirs, "state_dict")
        first = list(longer.values())[min(len(ours), len(theirs))]
        raise ValueError(
            f"net has {len(ours)} modules with parameters and state_dict {len(theirs)}: in order, "
            f"{first} of {which} is the first without a counterpart"
        )
    return dict(zip(ours.values(), theirs.values()))


def _value(
    our_name: str,
    leaf: str,
    parameter: gluon.Parameter,
    layout: str,
    their_name: str,
    module: dict[str, Any],
) -> tuple[str, np.ndarray]:
    """Return the name of the entry for a parameter, and its values."""
    here, there = _join(our_name, leaf), _join(their_name, _LEAVES[leaf])
    if parameter._data is None and not parameter._deferred_init:
        raise ValueError(f"{here} is not initialized: call net.initialize(ctx=...) first")
    if _LEAVES[leaf] not in module:
        if leaf in _DEFAULTS and "running_mean" in module:
            shape = module["running_mean"].shape if leaf != "num_batches_tracked" else (1,)
            return "", np.full(tuple(shape), _DEFAULTS[leaf])
        raise ValueError(f"{here} of net needs {there}, which state_dict does not have")
    value = module[_LEAVES[leaf]]
    if hasattr(value, "detach"):  # a tensor on any device, perhaps of bfloat16
        value = value.detach().cpu().double().numpy()
    value = np.asarray(value)
    if leaf == "num_batches_tracked":
        value = value.reshape(1)
    theirs = value.shape
    if layout.endswith("C") and value.ndim == len(layout):
        value = np.moveaxis(value, 1, -1)
    shape = parameter.shape or parameter.list_data()[0].shape  # None after SymbolBlock.imports
    fits = len(shape) == value.ndim and all(
        size in (0, -1, other) for size, other in zip(shape, value.shape)
    )
    if not fits:
        in_layout = f" with layout {layout}" if layout.endswith("C") else ""
        raise ValueError(
            f"{here} of net has shape {shape}{in_layout}, but {there}, which is at its place, has "
            f"{theirs}: say in `names` which modules match"
        )
    if leaf == "gamma" and not parameter._differentiable and (value != 1).any():
        raise ValueError(f"{there} is not 1, but {our_name} of net has scale=False")
    return there, value


def _join(module: str, leaf: str) -> str:
    return f"{module}.{leaf}" if module else leaf
