"""Every family of GluonCV's networks trains on two contexts as on one, hybridized.

What holds is the table in docs/gluoncv.md: each of its cells is the outcome of a test here.
``pytest --all-networks`` runs all of them, otherwise a few of every kind; together with
``--write-gluoncv-table`` the outcomes become the table.
"""

from __future__ import annotations

from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluoncv.model_zoo.rcnn.faster_rcnn.faster_rcnn import custom_faster_rcnn_fpn
from gluoncv.utils import freeze_bn
from mxnet import autograd
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.gluoncv_networks import DEVICES, NETWORKS, WAYS, Network, OneDevice
from tests.support.networks import load, norm_layers
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "gluoncv.md"
BEGIN = "<!-- table: written by pytest --all-networks --write-gluoncv-table -->"
END = "<!-- end of table -->"
HYBRIDIZED = "hybridized"


@pytest.fixture(scope="module")
def outcomes():
    """What the tests of this module found, by network and way."""
    return {}


@pytest.fixture(scope="module")
def network(request):
    if not request.param.by_default and not request.config.getoption("--all-networks"):
        pytest.skip("needs --all-networks")
    return request.param


@pytest.fixture(scope="module")
def one_device(network):
    return OneDevice(network)


def train_and_compare(net: Any, one_device: OneDevice, frozen: bool) -> None:
    one_device.step(frozen)
    load(net, contexts(DEVICES), one_device.values)
    net.hybridize()
    one_device.require_same(net, frozen)


def test_unsynchronized_layers_go_elsewhere():
    """So the comparisons can fail."""
    network = next(network for network in NETWORKS if network.family == "FastSCNN")
    with pytest.raises(AssertionError):
        train_and_compare(network.build(nn.BatchNorm, DEVICES), OneDevice(network), False)


def witness(network: Network, way: str) -> str:
    """How GluonCV fails with its own layers, or how many of them this way does not reach."""
    try:
        net = network.build(network.plain, 1)
        net.initialize(mx.init.Zero(), ctx=mx.cpu(), force_reinit=True)
        with autograd.record():
            network.loss(net, mx.nd.zeros((1, 3, network.size, network.size), dtype="float64"), 0)
    except (ValueError, mx.base.MXNetError) as error:
        return str(error)
    if way == "norm_layer":
        marked = norm_layers(network.build(Marked, 1))
        left = len(norm_layers(net)) - sum(type(layer) is Marked for layer in marked)
    else:
        scales = {name for name in net.collect_params() if name.endswith("gamma")}
        left = len(scales - {layer.gamma.name for layer in norm_layers(net)})
    return f"{left} layers" if left else ""


class Marked(nn.BatchNorm):
    """Tells the layers that GluonCV makes of norm_layer."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "network", NETWORKS, ids=[each.name for each in NETWORKS], indirect=True, scope="module"
)
def test_ways(network, way, one_device, outcomes):
    if way in network.impossible:
        assert witness(network, way)
    else:
        check_way(network, way, one_device)
    outcomes[network.name, way] = network.impossible.get(way, HYBRIDIZED)


def check_way(network: Network, way: str, one_device: OneDevice) -> None:
    if way == "norm_layer":
        net = network.build(gluon_syncbn.SyncBatchNorm, DEVICES, num_devices=DEVICES)
    else:
        net = network.converted()
    assert {type(layer) for layer in norm_layers(net)} == {gluon_syncbn.SyncBatchNorm}
    frozen = way == "freeze_bn"
    if frozen:
        freeze_bn(net)
    train_and_compare(net, one_device, frozen)
    for name, (value,) in one_device.step(frozen).running.items() if frozen else ():
        np.testing.assert_array_equal(value, one_device.values[name], err_msg=name)


def test_whole_faster_rcnn():
    """It trains on two devices, which keep the same running statistics."""
    net = custom_faster_rcnn_fpn(
        ["0", "1"],
        pretrained_base=False,
        norm_layer=gluon_syncbn.SyncBatchNorm,
        norm_kwargs={"num_devices": DEVICES},
        num_fpn_filters=8,
        num_box_head_conv=1,
        num_box_head_conv_filters=8,
        num_box_head_dense_filters=8,
        per_device_batch_size=1,
        num_sample=8,
        rpn_train_post_nms=16,
        rpn_channel=8,
    )
    net.initialize(ctx=contexts(DEVICES))
    net.target_generator.collect_params().reset_ctx(contexts(DEVICES))
    for active in (False, True):  # a graph cannot complete the shapes, with any norm layer
        net.hybridize(active)
        with autograd.record():
            losses = [
                sum(out.astype("float32").square().mean() for out in net(*arguments))
                for arguments in (rcnn_arguments(ctx) for ctx in contexts(DEVICES))
            ]
        autograd.backward(losses)
        mx.nd.waitall()
    running = dict(net.collect_params(".*running").items())
    assert len(running) > 30
    assert not running.keys() & gluon_syncbn.check_in_sync(net).keys()
    for name, parameter in running.items():
        start = 0 if "mean" in name else 1
        assert (parameter.data(mx.cpu(0)).asnumpy() != start).any(), name


def rcnn_arguments(ctx: mx.Context) -> list[mx.nd.NDArray]:
    """An image, the box of an object in it, and its class."""
    boxes, classes = mx.nd.array([[[8, 8, 40, 48]]], ctx=ctx), mx.nd.array([[[1]]], ctx=ctx)
    return [mx.nd.random.normal(shape=(1, 3, 64, 64), ctx=ctx), boxes, classes]


def table(outcomes: dict[tuple[str, str], str]) -> str:
    """Markdown: one row for each network, and notes on what GluonCV does not offer."""
    notes: list[str] = []
    lines = ["| family | backbone | aux | norm_layer | convert | freeze_bn |", "| --- " * 6 + "|"]
    for network in NETWORKS:
        cells = []
        for way in WAYS:
            outcome = outcomes[network.name, way]
            if outcome != HYBRIDIZED:
                if outcome not in notes:
                    notes.append(outcome)
                outcome = f"no ({notes.index(outcome) + 1})"
            cells.append(outcome)
        row = (network.family, network.backbone, network.aux, *cells)
        lines.append(f"| {' | '.join(row)} |")
    lines += [""] + [f"{number}. {note}." for number, note in enumerate(notes, 1)]
    return "\n".join(lines)


def test_the_table_is_in_step(outcomes, request):
    """The last test: every outcome is what docs/gluoncv.md says."""
    claimed = {
        (network.name, way): network.impossible.get(way, HYBRIDIZED)
        for network in NETWORKS
        for way in WAYS
    }
    assert outcomes.items() <= claimed.items()
    before, rest = PAGE.read_text().split(BEGIN)
    shown, after = rest.split(END)
    if request.config.getoption("--write-gluoncv-table"):
        assert outcomes == claimed, "some networks have not been tested: add --all-networks"
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(outcomes)}\n\n{END}{after}")
    assert shown.strip() == table(claimed)
