"""Programs that use MXNet before they import gluon_syncbn."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable
from typing import Any


def run_operator(name: str) -> None:
    import mxnet as mx

    if name == "convolution":
        x, w = mx.nd.ones((1, 16, 8, 8)), mx.nd.ones((16, 16, 3, 3))
        mx.nd.Convolution(x, w, no_bias=True, num_filter=16, kernel=(3, 3)).wait_to_read()
    elif name == "array":
        mx.nd.array([1])
    elif name == "ones":
        mx.nd.ones((2,)).wait_to_read()
    elif name == "sum":
        (mx.nd.ones((2,)) + 1).wait_to_read()


def print_warned_and_refused(operator: str) -> None:
    run_operator(operator)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import gluon_syncbn
    late = ["Restart Python" in str(w.message) for w in caught if w.category is UserWarning]
    problem = gluon_syncbn.cpu_contexts.find_problem(several=False)
    assert problem is None or "Restart Python" in problem, problem
    print(any(late), problem is not None)


def recurrent_layers(operator: str) -> None:
    """MXNet's cells are the oracle of its fused layers."""
    warnings.simplefilter("ignore")
    run_operator(operator)
    import gluon_syncbn  # noqa: F401
    import mxnet as mx
    import numpy as np
    from mxnet.gluon import rnn

    from tests.support.either_mxnet import nd

    x = nd.normal(shape=(5, 2, 3))  # steps, batch, channels
    for kind in ("LSTM", "GRU", "RNN"):
        cell = getattr(rnn, f"{kind}Cell")(4, input_size=3)
        layer = getattr(rnn, kind)(4, **({"activation": "tanh"} if kind == "RNN" else {}))
        both = rnn.LSTM(4, 2, bidirectional=True)
        for each in (layer, cell, both):
            each.initialize()
        cell.unroll(5, x, layout="TNC")
        layer(x)
        names = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
        if hasattr(layer, "rnn_param"):  # MXNet 2 has all in one vector
            parts = [getattr(cell, name).data().asnumpy().ravel() for name in names]
            layer.rnn_param.set_data(nd.array(np.concatenate(parts)))
        else:
            for name in names:
                getattr(layer, f"l0_{name}").set_data(getattr(cell, name).data())
        x.attach_grad()
        found = []
        for net in (layer, cell, both):
            with mx.autograd.record():
                if net is cell:
                    out, _ = cell.unroll(5, x, layout="TNC", merge_outputs=True)
                else:
                    out = net(x)
            out.backward()
            found.append((out.asnumpy(), x.grad.asnumpy()))
        for one, other in zip(*found[:2]):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def _python() -> dict:
    """The names in modules of MXNet and in their classes."""
    state: dict = {}
    for module in [each for name, each in sys.modules.items() if name.split(".")[0] == "mxnet"]:
        for name, value in vars(module).items():
            state[module.__name__, name] = id(value)
            if isinstance(value, type):
                members = [(n, id(each)) for n, each in vars(value).items() if n[:2] != "__"]
                state[module.__name__, name, "members"] = sorted(members)
    return state


def print_changes_of_mxnet() -> None:
    """Print which parts of MXNet the import changes."""
    import mxnet as mx
    import mxnet.gluon.contrib

    library = mx.base._LIB
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        lines = [line for line in maps if line.rstrip().endswith(library._name)]
    base = min(int(line.split("-")[0], 16) for line in lines)
    command = ["readelf", "-rW", library._name]
    relocations = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    slots = [line.split()[0] for line in relocations.splitlines() if " cblas_" in line]
    assert len(slots) > 10
    manager = _entry_of_resource_manager(0)

    def words(addresses: Iterable[int]) -> list:
        return [ctypes.c_void_p.from_address(address).value for address in addresses]

    def state() -> dict[str, Any]:
        return {
            "environment": dict(os.environ),
            "resource manager": words(range(manager, manager + 6 * 8, 8)),
            "products": words(base + int(slot, 16) for slot in slots),
            "Python": _python(),
        }

    before = state()
    import gluon_syncbn  # noqa: F401

    after = state()
    print(", ".join(name for name in before if before[name] != after[name]))


def _entry_of_resource_manager(number: int) -> int:
    """The address of a function's address in the table of a class of MXNet."""
    import mxnet as mx

    table = ctypes.c_void_p.in_dll(mx.base._LIB, "_ZTVN5mxnet8resource19ResourceManagerImplE")
    return ctypes.addressof(table) + number * 8


def another_mxnet() -> None:
    """During the import, a function of MXNet is one that something else has put there."""
    entry = _entry_of_resource_manager(3)
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(entry // 4096 * 4096), 4096, 3) == 0
    slot = ctypes.c_void_p.from_address(entry)
    original, slot.value = slot.value, ctypes.cast(libc.abs, ctypes.c_void_p).value
    import gluon_syncbn  # noqa: F401

    slot.value = original
    import mxnet as mx
    import pytest

    from tests.support.two_devices import contexts, train

    for context in contexts:
        train(ctx=[context])
    with pytest.raises(mx.base.MXNetError) as error:
        train()
    for words in ("syncbatchnorm", "MXNet 1.9.1", "10SeedRandomEj is expected", "which has abs"):
        assert words in str(error.value), error.value


def first_context_draws_what_mxnet_draws() -> None:
    import mxnet as mx

    def draw() -> tuple[Any, Any]:
        mx.random.seed(7)
        ones = mx.nd.ones((9,))
        return mx.nd.random.uniform(shape=(9,)), mx.nd.Dropout(ones, 0.5, mode="always")

    before = draw()
    import gluon_syncbn  # noqa: F401

    mx.nd.random.uniform(shape=(9,), ctx=mx.cpu(1))
    for x, y in zip(before, draw()):
        assert (x.asnumpy() == y.asnumpy()).all()
