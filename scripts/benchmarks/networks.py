"""Training steps of GluonCV's segmentation networks, and the memory that they take."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from benchmarks.layers import Case, peak_mb

SLOPE = 0.01
CLASSES = 21
STEP = 16  # between the sides of crops that are tried


def build(method: str, model: str, side: int, contexts: int, leaky: bool = False) -> Any:
    """Make a network of GluonCV with the norm layer of a method, without Dropout."""
    import mxnet as mx
    from gluoncv import model_zoo
    from mxnet.gluon import contrib, nn

    ctx = [mx.cpu(i) for i in range(contexts)]
    norm_layer: Any = nn.BatchNorm
    norm_kwargs = {}
    if method == "builtin":
        norm_layer, norm_kwargs = contrib.nn.SyncBatchNorm, {"num_devices": contexts}
    elif not method.startswith("batchnorm"):
        import gluon_syncbn  # not beside others: it changes what all of MXNet computes with

        norm_layer = gluon_syncbn.SyncBatchNorm
        norm_kwargs = {"num_devices": contexts}
    kinds = {"fcn": model_zoo.FCN, "psp": model_zoo.PSPNet, "deeplab": model_zoo.DeepLabV3}
    with mx.name.NameManager():
        net = kinds[model](
            nclass=CLASSES,
            backbone="resnet50",
            aux=False,
            pretrained_base=False,
            base_size=side,
            crop_size=side,
            ctx=ctx,
            norm_layer=norm_layer,
            norm_kwargs=norm_kwargs,
        )
    if leaky:
        _make_leaky(net)
    net.apply(_stop_dropout)
    net.initialize(mx.init.Xavier(), ctx=ctx, force_reinit=True)
    if method in ("fused", "inplace"):
        return gluon_syncbn.fuse(net, inplace=method == "inplace")
    return net


def _stop_dropout(block: Any) -> None:
    from mxnet.gluon import nn

    if isinstance(block, nn.Dropout):
        block._rate = 0.0


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


class Training:
    """Training steps with `static_alloc` on all contexts, with the same images each time."""

    def __init__(self, method: str, case: Case) -> None:
        import mxnet as mx
        from mxnet import gluon

        self._mx = mx
        ctx = [mx.cpu(i) for i in range(case["contexts"])]
        side, self._batch = case["side"], case["images"] * len(ctx)
        self._net = build(method, case["model"], side, len(ctx), case.get("leaky", False))
        self._net.hybridize(static_alloc=True)
        self._criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
        parameters = self._net.collect_params()
        self._trainer = gluon.Trainer(parameters, "sgd", {"learning_rate": 1e-3})
        generator = np.random.default_rng(0)
        images = generator.standard_normal((self._batch, 3, side, side))
        labels = generator.integers(0, CLASSES, (self._batch, side, side))
        split = gluon.utils.split_and_load
        self._parts = list(zip(*(split(mx.nd.array(x), ctx) for x in (images, labels))))
        mx.nd.waitall()

    def __call__(self) -> None:
        with self._mx.autograd.record():
            losses = [self._criterion(self._net(x)[0], y) for x, y in self._parts]
        self._mx.autograd.backward(losses)
        self._trainer.step(self._batch)
        self._mx.nd.waitall()


def measure_plan(request: Case) -> dict[str, Any]:
    """MB that MXNet plans for all arrays of a step between the inputs and the gradients.

    With `largest_mb`, the side of the largest crop whose plan takes no more.
    """
    case, (method,) = request["case"], request["methods"]
    if "largest_mb" not in request:
        return {"mb": _planned(method, case, case["side"])}
    side = case["side"]
    while _planned(method, case, side + STEP) <= request["largest_mb"]:
        side += STEP
    return {"side": side}


def _planned(method: str, case: Case, side: int) -> int:
    import mxnet as mx
    from mxnet import gluon

    out = build(method, case["model"], side, 1, leaky=True)(mx.sym.var("data"))[0]
    loss = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)(out, mx.sym.var("label"))
    images = case["images"]
    shapes = {"data": (images, 3, side, side), "label": (images, side, side)}
    requests = {name: "null" if name in shapes else "write" for name in loss.list_arguments()}
    executor = loss.simple_bind(mx.cpu(), grad_req=requests, **shapes)
    (total,) = re.findall(r"Total (\d+) MB allocated", executor.debug_str())
    return int(total)


def measure_peak(request: Case) -> dict[str, Any]:
    """Peak memory of a process that trains for a few steps, and before the first of them."""
    (method,) = request["methods"]
    step = Training(method, request["case"])
    before = peak_mb()
    for _ in range(request["rounds"]):
        step()
    return {"mb": peak_mb(), "before_mb": before}
