"""Drawn networks train on any number of devices as plain ones do on one."""

from __future__ import annotations

import tempfile
from typing import Any

import gluon_syncbn
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon
from mxnet.gluon import nn

from tests.conftest import contexts, examples
from tests.support.either_mxnet import HybridBlock, nd
from tests.support.networks import exact_leaky_relu, import_files, load, make_images, randomize
from tests.support.step import MODES, compare, train_step

SIZE = 5  # of images
SLOPE = 0.25
# In the layer, after it, and whether the layer can work in place with it.
ACTIVATIONS: dict[str | None, tuple[dict[str, Any], Any, bool]] = {
    None: ({}, None, True),
    "relu": ({"activation": "relu"}, lambda: nn.Activation("relu"), False),
    "leaky": ({"activation": "leaky_relu", "alpha": SLOPE}, lambda: nn.LeakyReLU(SLOPE), True),
    "elu": ({"activation": "elu", "alpha": 0.5}, lambda: nn.ELU(0.5), True),
}
STAGE = st.fixed_dictionaries(
    {
        "kernel": st.sampled_from([1, 3]),
        "groups": st.sampled_from([1, 2]),
        "activation": st.sampled_from(sorted(ACTIVATIONS, key=str)),
        "shortcut": st.booleans(),
        "inside": st.booleans(),  # activation and shortcut in our layer, not after it
        "inplace": st.booleans(),
        "norm": st.fixed_dictionaries(
            {
                "momentum": st.sampled_from([0.5, 0.9]),
                "epsilon": st.sampled_from([1e-5, 1e-3]),
                "center": st.booleans(),
                "scale": st.booleans(),
                "use_global_stats": st.sampled_from([False, False, False, True]),
            }
        ),
    }
)


class Drawn(HybridBlock):
    """A convolution, a norm and an activation for each stage; every output is used twice."""

    def __init__(self, stages: list[dict[str, Any]], norm: Any) -> None:
        super().__init__(prefix="drawn_")
        ours = norm is gluon_syncbn.SyncBatchNorm
        self.stages = []
        with self.name_scope():
            for i, stage in enumerate(stages):
                inside, behind, invertible = ACTIVATIONS[stage["activation"]]
                options = {"in_channels": 4, **stage["norm"]}
                is_inside = ours and stage["inside"]
                if is_inside:
                    options.update(inside)
                if is_inside and stage["inplace"] and invertible and not stage["shortcut"]:
                    options["inplace"] = stage["norm"]["scale"]
                blocks = [
                    nn.Conv2D(
                        4,
                        stage["kernel"],
                        padding=stage["kernel"] // 2,
                        groups=stage["groups"] if i else 1,
                        in_channels=4 if i else 3,
                        prefix=f"conv{i}_",
                    ),
                    norm(**options, prefix=f"norm{i}_"),
                    None if is_inside or behind is None else behind(),
                ]
                for name, block in zip(("conv", "norm", "act"), blocks):
                    if block is not None:
                        setattr(self, f"{name}{i}", block)
                self.stages.append((*blocks, is_inside, stage["shortcut"] and i > 0))

    def hybrid_forward(self, F, x):
        for conv, norm, activation, is_inside, shortcut in self.stages:
            x, before = conv(x), x
            if shortcut and is_inside:
                x = norm(x, before)
            else:
                x = norm(x) + before if shortcut else norm(x)
            if activation is not None:
                x = activation(x)
        return x, F.tanh(x)


def imported(net: gluon.HybridBlock, number: int) -> gluon.SymbolBlock:
    """Import what is exported of a network."""
    net.hybridize()
    net(nd.zeros((1, 3, SIZE, SIZE), ctx=contexts(1)[0], dtype="float64"))
    with tempfile.TemporaryDirectory() as folder:
        net.export(f"{folder}/net")
        block = import_files(f"{folder}/net", contexts(number))
    parameters = block.collect_params()
    for name, parameter in net.collect_params().items():  # of which the files do not tell
        parameters[name].grad_req = parameter.grad_req
    return block


WAYS = ["built", "converted", "fused", "fused in place", "imported"]


@examples(40)
@given(
    stages=st.lists(STAGE, min_size=1, max_size=5),
    way=st.sampled_from(WAYS),
    mode=st.sampled_from(sorted(MODES)),
    number=st.integers(1, 3),
)
def test_any_network(stages, way, mode, number):
    one = Drawn(stages, nn.BatchNorm)
    values = randomize(one, make_images(SIZE, 1))
    if way == "converted":
        net = gluon_syncbn.convert_sync_batchnorm(Drawn(stages, nn.BatchNorm), number)
    else:
        net = Drawn(stages, gluon_syncbn.SyncBatchNorm)
    net.cast("float64")
    load(net, contexts(number), values)
    if way.startswith("fused"):
        net = gluon_syncbn.fuse(net, inplace=way == "fused in place")
    elif way == "imported":
        with exact_leaky_relu():
            net = imported(net, number)
    net.hybridize(**MODES[mode])
    for _ in range(2):
        with exact_leaky_relu():
            expected = train_step(one, make_images(SIZE, 1), contexts(1))
            found = train_step(net, make_images(SIZE, number), contexts(number))
        for step in (expected, found):  # BatchNorm writes 1 into a gamma that it does not use
            step.running = {n: v for n, v in step.running.items() if not n.endswith("gamma")}
        compare(found, expected, 1e-8, running=1e-6)
