"""Training steps of networks, and the memory that they take.

They are GluonCV's segmentation networks, and the ResNet-50 of MXNet, which runs on MXNet 2 too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.layers import mxnet_sync_batch_norm, new_array
from benchmarks.worker import peak_mb

SLOPE = 0.01
CLASSES = 21
STEP = 16  # pixels between the sides of the crops to try


@dataclass(frozen=True)
class Case:
    """The network to train, and its images."""

    model: str  # fcn, psp, deeplab or resnet50
    side: int
    images: int  # in the whole batch
    contexts: int = 1
    leaky: bool = False  # replaces all activations by leaky ReLUs


def build_resnet(method: str, case: Case) -> Any:
    """Make MXNet's ResNet-50 with the norm layer of a method."""
    import mxnet as mx
    from mxnet.gluon import model_zoo, nn

    norm: Any = nn.BatchNorm
    if method == "builtin":
        norm = functools.partial(mxnet_sync_batch_norm(), num_devices=case.contexts)
    with mock.patch.object(nn, "BatchNorm", norm):
        net = model_zoo.vision.resnet50_v1(classes=CLASSES)
    if method.startswith("ours"):
        import gluon_syncbn

        gluon_syncbn.convert_sync_batchnorm(net)
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(i) for i in range(case.contexts)])
    return net


def build(method: str, case: Case) -> Any:
    """Make a network with the norm layer of a method, without Dropout."""
    if case.model == "resnet50":
        return build_resnet(method, case)
    import mxnet as mx
    from gluoncv import model_zoo
    from mxnet.gluon import nn

    ctx = [mx.cpu(i) for i in range(case.contexts)]
    norm_layer: Any = nn.BatchNorm
    norm_kwargs = {"num_devices": case.contexts}
    if method.startswith("batchnorm"):
        norm_kwargs = {}
    elif method == "builtin":
        norm_layer = mxnet_sync_batch_norm()
    else:
        import gluon_syncbn  # The import changes MXNet for all layers.

        norm_layer = gluon_syncbn.SyncBatchNorm
    kinds = {"fcn": model_zoo.FCN, "psp": model_zoo.PSPNet, "deeplab": model_zoo.DeepLabV3}

    def activation(name: str) -> Any:
        return nn.LeakyReLU(SLOPE) if case.leaky else relu(name)

    def stop_dropout(block: Any) -> None:
        if isinstance(block, nn.Dropout):
            block._rate = 0.0

    relu = nn.Activation
    with mx.name.NameManager(), mock.patch.object(nn, "Activation", activation):
        net = kinds[case.model](
            nclass=CLASSES,
            backbone="resnet50",
            aux=False,
            pretrained_base=False,
            base_size=case.side,
            crop_size=case.side,
            ctx=ctx,
            norm_layer=norm_layer,
            norm_kwargs=norm_kwargs,
        )
    net.apply(stop_dropout)
    net.initialize(mx.init.Xavier(), ctx=ctx, force_reinit=True)
    if method in ("fused", "inplace"):
        return gluon_syncbn.fuse(net, inplace=method == "inplace")
    return net


def training_step(method: str, case: Case) -> Callable[[], None]:
    """Return one training step with `static_alloc` on all contexts, always of the same images."""
    import mxnet as mx
    from mxnet import gluon

    net = build(method, case)
    net.hybridize(static_alloc=True)
    criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
    generator = np.random.default_rng(0)
    images = generator.standard_normal((case.images, 3, case.side, case.side))
    classifies = case.model == "resnet50"  # images, where the others classify their pixels
    label_shape = (case.images,) if classifies else (case.images, case.side, case.side)
    labels = generator.integers(0, CLASSES, label_shape)
    ctx = [mx.cpu(i) for i in range(case.contexts)]
    split = gluon.utils.split_and_load
    parts = list(zip(*(split(new_array(x, mx.cpu()), ctx) for x in (images, labels))))
    mx.nd.waitall()

    def step() -> None:
        with mx.autograd.record():
            losses = [criterion(net(x) if classifies else net(x)[0], y) for x, y in parts]
        mx.autograd.backward(losses)
        trainer.step(case.images)
        mx.nd.waitall()

    return step


def planned_mb(method: str, case: Case) -> int:
    """Return the MB that MXNet plans for the arrays of a step besides inputs and gradients."""
    import mxnet as mx
    from mxnet import gluon

    out = build(method, case)(mx.sym.var("data"))[0]
    loss = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)(out, mx.sym.var("label"))
    label_shape = (case.images, case.side, case.side)
    shapes = {"data": (case.images, 3, case.side, case.side), "label": label_shape}
    requests = {name: "null" if name in shapes else "write" for name in loss.list_arguments()}
    executor = loss.simple_bind(mx.cpu(), grad_req=requests, **shapes)
    (total,) = re.findall(r"Total (\d+) MB allocated", executor.debug_str())
    return int(total)


def largest_side(method: str, case: Case, most_mb: int) -> int:
    """Return the side of the largest crop whose plan takes at most that many MB."""
    side = case.side
    while planned_mb(method, replace(case, side=side + STEP)) <= most_mb:
        side += STEP
    return side


def measure_peak(method: str, case: Case, rounds: int) -> tuple[int, int]:
    """Return the peak memory of a process in MB: of a few training steps, and before them."""
    step = training_step(method, case)
    before = peak_mb()
    for _ in range(rounds):
        step()
    return peak_mb(), before
