"""Memory of training steps of FCN-ResNet50 with leaky ReLU: BatchNorm, fused norms, in place."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.measuring import Case, peak_mb

SLOPE = 0.01
CLASSES = 21
STEP = 16  # between the sides of crops that are tried


def build(method: str, side: int) -> tuple[Any, Any]:
    """Make the network on one context; return it and what computes it."""
    import gluon_syncbn
    import mxnet as mx
    from gluoncv.model_zoo import FCN
    from mxnet import gluon

    plain = method == "batchnorm"
    with mx.name.NameManager():
        net = FCN(
            nclass=CLASSES,
            backbone="resnet50",
            aux=False,
            pretrained_base=False,
            crop_size=side,
            ctx=[mx.cpu()],
            norm_layer=gluon.nn.BatchNorm if plain else gluon_syncbn.SyncBatchNorm,
            norm_kwargs={} if plain else {"num_devices": 1},
        )
    _make_leaky(net)
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu()], force_reinit=True)
    if plain:
        return net, net
    return net, gluon_syncbn.fuse(net, inplace=method == "inplace")


def _make_leaky(block: Any) -> None:
    """Put leaky ReLUs in the place of all activations."""
    from mxnet.gluon import nn

    for name, child in list(block._children.items()):
        if not isinstance(child, nn.Activation):
            _make_leaky(child)
        elif hasattr(block, name) and getattr(block, name) is child:
            # Gluon refuses another type for an attribute that is set.
            object.__setattr__(block, name, nn.LeakyReLU(SLOPE))
            block._children[name] = getattr(block, name)
        else:
            block._children[name] = nn.LeakyReLU(SLOPE)


def measure_plan(request: Case) -> dict[str, Any]:
    """MB that MXNet plans for all arrays of a step between the inputs and the gradients."""
    case, (method,) = request["case"], request["methods"]
    if "largest_mb" not in request:
        return {"mb": _planned(method, case["images"], case["side"])}
    side = case["side"]
    while _planned(method, case["images"], side + STEP) <= request["largest_mb"]:
        side += STEP
    return {"side": side}


def _planned(method: str, images: int, side: int) -> int:
    import mxnet as mx
    from mxnet import gluon

    out = build(method, side)[1](mx.sym.var("data"))[0]
    loss = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)(out, mx.sym.var("label"))
    shapes = {"data": (images, 3, side, side), "label": (images, side, side)}
    requests = {name: "null" if name in shapes else "write" for name in loss.list_arguments()}
    executor = loss.simple_bind(mx.cpu(), grad_req=requests, **shapes)
    (total,) = re.findall(r"Total (\d+) MB allocated", executor.debug_str())
    return int(total)


def measure_peak(request: Case) -> dict[str, Any]:
    """Peak memory of a process that trains for a few steps, and before the first of them."""
    import mxnet as mx
    from mxnet import gluon

    case, (method,) = request["case"], request["methods"]
    images, side = case["images"], case["side"]
    net, network = build(method, side)
    network.hybridize(static_alloc=True)
    criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
    data = mx.nd.random.normal(shape=(images, 3, side, side))
    label = mx.nd.zeros((images, side, side))
    mx.nd.waitall()
    before = peak_mb()
    for _ in range(request["rounds"]):
        with mx.autograd.record():
            loss = criterion(network(data)[0], label).sum()
        loss.backward()
        trainer.step(images)
        mx.nd.waitall()
    return {"mb": peak_mb(), "before_mb": before}
