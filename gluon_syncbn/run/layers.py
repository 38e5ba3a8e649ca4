"""Replaces MXNet's layer, and with ``--convert`` every BatchNorm that the program makes."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable

from mxnet import gluon
from mxnet.gluon.nn.basic_layers import _BatchNorm

from ..block import SyncBatchNorm
from ..convert import difference_from_batchnorm, synchronize
from ..mxnet_versions import IS_2, PLAIN_NORMS
from ..naming import name_of
from .first_calls import LOCK, wrap_method
from .summary import left_layers, made


def replace(convert: bool, num_devices: int | None) -> None:
    """Put SyncBatchNorm wherever MXNet's own can be imported from, and note the layers made."""
    replace_in_mxnet(PLAIN_NORMS[1], SyncBatchNorm)
    wrap_method(SyncBatchNorm, "__init__", _init_and_note)
    if convert:
        _convert_new_layers(num_devices)


def _init_and_note(init: Callable, layer: Any, *args: Any, **kwargs: Any) -> None:
    init(layer, *args, **kwargs)
    made.add(name_of(layer))


def replace_in_mxnet(theirs: Any, ours: Any) -> None:
    """Put `ours` wherever a module of MXNet has `theirs`."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "mxnet":
            for name in [name for name, value in vars(module).items() if value is theirs]:
                setattr(module, name, ours)


def _convert_new_layers(num_devices: int | None) -> None:
    """Make a SyncBatchNorm of each BatchNorm that can be one, before its first call."""
    examined: weakref.WeakSet[Any] = weakref.WeakSet()

    def convert(layer: Any) -> None:
        if difference_from_batchnorm(layer) is not None:
            name = f"{name_of(layer)}{len(left_layers)}" if IS_2 else layer.name
            left_layers[name] = type(layer).__name__
            return
        # The layers of MXNet 2 have no names yet.
        name = f"batchnorm{len(made)}" if IS_2 else layer.name
        synchronize(layer, name, num_devices)
        made.add(name)

    # Not in the constructor: copies do not call it, and subclasses change the layer after it.
    def convert_and_call(call: Callable, block: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(block, _BatchNorm) and block not in examined:
            with LOCK:
                if block not in examined:  # else another thread has converted it
                    if not isinstance(block, SyncBatchNorm):
                        convert(block)
                    examined.add(block)
        return call(block, *args, **kwargs)

    wrap_method(gluon.Block, "__call__", convert_and_call)
