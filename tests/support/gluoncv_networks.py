"""GluonCV's networks on small images, in double precision, and how to compute a loss of each."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable
from unittest import mock

import gluon_syncbn
import mxnet as mx
import numpy as np
from gluoncv.loss import YOLOV3Loss
from gluoncv.model_zoo import FCN, DeepLabV3, FastSCNN, PSPNet
from gluoncv.model_zoo.alpha_pose.fast_pose import AlphaPose, FastSEResNet
from gluoncv.model_zoo.danet import DANet
from gluoncv.model_zoo.deeplabv3_plus import DeepLabV3Plus
from gluoncv.model_zoo.deeplabv3b_plus import DeepLabWV3Plus
from gluoncv.model_zoo.icnet import ICNet
from gluoncv.model_zoo.rcnn.mask_rcnn import mask_rcnn
from gluoncv.model_zoo.rcnn.rcnn import custom_rcnn_fpn
from gluoncv.model_zoo.simple_pose import mobile_pose, simple_pose_resnet
from gluoncv.model_zoo.yolo import yolo3
from gluoncv.nn.dropblock import set_drop_prob
from gluoncv.utils import freeze_bn
from mxnet import gluon
from mxnet.gluon import contrib, nn

from tests.conftest import contexts
from tests.support.networks import leaves, load, make_images, randomize, weighted_loss
from tests.support.step import Step, compare, train_step

CLASSES = 3
DEVICES = 2  # that are compared with one

WAYS = ("norm_layer", "convert", "freeze_bn")

BACKBONES = ("resnet50", "resnest50")

BY_DEFAULT = {
    ("FCN", "resnest50", "yes"),
    ("DeepLabV3", "resnet50", "no"),
    ("ICNet", "resnet50", "-"),  # has the head of PSPNet
}

Make = Callable[[Any, dict, list], Any]
Loss = Callable[[Any, mx.nd.NDArray, int], mx.nd.NDArray]


@dataclass(frozen=True)
class Network:
    """One row of the table in docs/gluoncv.md.

    Attributes
    ----------
    family, backbone, aux : str
        The columns of the row; `aux` is ``-`` if the family ignores that argument.
    make : callable
        Makes the network from norm_layer, norm_kwargs and contexts.
    loss : callable
        Gives the loss from the network, a shard and the place of the shard in the batch.
    size : int
        Height and width of the images.
    by_default : bool
        Whether every run of the tests includes it.
    impossible : dict of str to str
        The ways (see `WAYS`) that GluonCV itself does not offer, and the reasons.
    tolerance : float
        For gradients, because random networks magnify rounding errors with every layer.
    plain, convertible : type
        The norm_layer for GluonCV on one device, and before conversion.
    """

    family: str
    backbone: str
    aux: str
    make: Make
    loss: Loss
    size: int
    by_default: bool = False
    impossible: dict[str, str] = field(default_factory=dict)
    tolerance: float = 1e-7
    plain: Any = nn.BatchNorm
    convertible: Any = nn.BatchNorm

    @property
    def name(self) -> str:
        return f"{self.family}-{self.backbone}" + ("-aux" if self.aux == "yes" else "")

    def build(self, norm_layer: Any, number: int, **norm_kwargs: Any) -> Any:
        """Make the network for `number` contexts, without dropout, which is random."""
        with _quietly(), mx.name.NameManager():  # gives the same names every time
            net = self.make(norm_layer, norm_kwargs, [mx.cpu(i) for i in range(number)])
        net.apply(_without_dropout)
        net.cast("float64")
        return net

    def converted(self) -> Any:
        """Make the network with other norms and convert them."""
        num_devices = {"num_devices": 1} if self.convertible is contrib.nn.SyncBatchNorm else {}
        net = self.build(self.convertible, DEVICES, **num_devices)
        # A network with a symbol needs the number if it is not initialized.
        return gluon_syncbn.convert_sync_batchnorm(net, DEVICES)


@contextlib.contextmanager
def _quietly() -> Any:
    """Hide what GluonCV's constructors print, and their warnings about what they initialize."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _without_dropout(block: Any) -> None:
    if isinstance(block, nn.Dropout):
        block._rate = 0
    set_drop_prob(0, block)


def _pixels_loss(net: Any, x: mx.nd.NDArray, first: int) -> mx.nd.NDArray:
    """Return the cross entropy of every output with random labels of its size."""
    criterion = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
    losses = []
    for out in leaves(net(x)):
        rng = np.random.default_rng(out.shape[2])
        labels = rng.integers(0, CLASSES, (first + out.shape[0], *out.shape[2:]))[first:]
        losses.append(criterion(out, mx.nd.array(labels, ctx=out.context)).sum())
    return sum(losses)


def _masks_loss(net: Any, x: mx.nd.NDArray, first: int) -> mx.nd.NDArray:
    """Remove the first axis of the output of Mask R-CNN's head: the image of each region."""
    return weighted_loss(lambda data: net(data)[0], x, first)


class _Predictions(YOLOV3Loss):
    """Return YOLO3's predictions. They replace its loss, which casts to single precision."""

    def hybrid_forward(self, F: Any, objectness: Any, *predictions_and_targets: Any) -> Any:
        return [objectness, *predictions_and_targets[:3]]


def _yolo_loss(net: Any, x: mx.nd.NDArray, first: int) -> mx.nd.NDArray:
    """YOLO3's predictions in training, which it makes only if it gets targets."""
    count = sum(3 * (x.shape[2] // stride) ** 2 for stride in (8, 16, 32))
    sizes = [(1, 4), (count, 1), (count, 2), (count, 2), (count, 2), (count, CLASSES)]
    targets = [mx.nd.ones((x.shape[0], *size), ctx=x.context, dtype="float64") for size in sizes]
    return weighted_loss(lambda data: net(data, *targets), x, first)


def _segmentation(make: Any, size: int, **fixed: Any) -> Make:
    fixed.update(nclass=CLASSES, crop_size=size, pretrained_base=False)
    return lambda norm_layer, norm_kwargs, ctx: make(
        norm_layer=norm_layer, norm_kwargs=norm_kwargs, ctx=ctx, **fixed
    )


class _RcnnFeatures(gluon.HybridBlock):
    """The parts of Faster and Mask R-CNN with norm layers: the pyramid of features, the box head.

    The rest draws proposals at random, which no two runs share, and has no norm layer.
    """

    def __init__(self, backbone: str, norm_layer: Any, norm_kwargs: dict, ctx: list) -> None:
        super().__init__()
        with self.name_scope():
            self.features, _, self.box_features = custom_rcnn_fpn(
                pretrained_base=False,
                base_network_name=backbone,
                norm_layer=norm_layer,
                norm_kwargs=norm_kwargs,
                num_fpn_filters=8,
                num_box_head_conv=2,
                num_box_head_conv_filters=8,
                num_box_head_dense_filters=8,
            )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.features(x)
        return [*features, self.box_features(features[0])]


def _yolo(make: Any, norm_layer: Any, norm_kwargs: dict, ctx: list) -> Any:
    classes = [str(number) for number in range(CLASSES)]
    net = make(classes, pretrained_base=False, norm_layer=norm_layer, norm_kwargs=norm_kwargs)
    net._loss = _Predictions()
    return net


class _NotFrozen(nn.BatchNorm):
    """A BatchNorm under another name: for BatchNorm itself, GluonCV freezes the statistics."""

    def _alias(self) -> str:
        return "batchnorm"


def _mask_head(norm_layer: Any, norm_kwargs: dict, ctx: list) -> Any:
    kwargs = {"num_fcn_convs": 2, "norm_layer": norm_layer, "norm_kwargs": norm_kwargs}
    if norm_layer is nn.BatchNorm:
        # GluonCV makes norm layers here only for MXNet's SyncBatchNorm, which has no float64.
        with mock.patch.object(mask_rcnn, "SyncBatchNorm", norm_layer):
            return mask_rcnn.Mask(1, range(CLASSES), 8, **kwargs)
    return mask_rcnn.Mask(1, range(CLASSES), 8, **kwargs)


def _pose(make: Any, norm_layer: Any, norm_kwargs: dict, ctx: list) -> Any:
    return make(pretrained_base=False)


def _alpha_pose(norm_layer: Any, norm_kwargs: dict, ctx: list) -> Any:
    features = FastSEResNet("resnet50", norm_layer=norm_layer, **norm_kwargs)
    return AlphaPose(features, CLASSES, norm_layer=norm_layer, norm_kwargs=norm_kwargs)


_CHANNELS = "GluonCV's heads expect 2048 channels from the backbone, and this one has 512"
_UNKNOWN = "GluonCV's segmentation networks do not know this backbone"
_HEAD_ONLY = "GluonCV hands norm_layer to the head only and makes the backbone with BatchNorm"
_SYMBOL = "GluonCV traces the backbone into a symbol, and freezes only layers"
_POSE = "GluonCV takes no norm_layer here, and makes layers of its class BatchNormCudnnOff"
_MASK = "GluonCV makes norm layers here for MXNet's own SyncBatchNorm only (which can be converted)"


def _everything() -> Iterator[Network]:
    for family, make, size, auxes in (
        ("FCN", FCN, 16, ("no", "yes")),
        ("PSPNet", PSPNet, 16, ("no", "yes")),
        ("DeepLabV3", DeepLabV3, 16, ("no", "yes")),
        ("ICNet", ICNet, 64, ("-",)),
        ("DANet", DANet, 16, ("-",)),
    ):
        for backbone in BACKBONES:
            for aux in auxes:
                built = _segmentation(make, size, backbone=backbone, aux=aux == "yes")
                by_default = (family, backbone, aux) in BY_DEFAULT
                yield Network(family, backbone, aux, built, _pixels_loss, size, by_default)
    for backbone in ("resnet101", "resnet152", "resnest101", "resnest200", "resnest269"):
        built = _segmentation(FCN, 32, backbone=backbone, aux=True)
        tolerance = 1e-5 if backbone in ("resnest200", "resnest269") else 1e-7
        yield Network("FCN", backbone, "yes", built, _pixels_loss, 32, tolerance=tolerance)
    for backbone, why in (
        ("resnet18", _CHANNELS),
        ("resnet34", _CHANNELS),
        ("mobilenet1.0", _UNKNOWN),
        ("wideresnet", _UNKNOWN),
    ):
        built = _segmentation(FCN, 32, backbone=backbone, aux=True)
        impossible = dict.fromkeys(WAYS, why)
        yield Network("FCN", backbone, "yes", built, _pixels_loss, 32, True, impossible)
    for aux in ("no", "yes"):
        built = _segmentation(DeepLabV3Plus, 32, aux=aux == "yes")
        yield Network("DeepLabV3+", "xception", aux, built, _pixels_loss, 32)
    built, impossible = _segmentation(DeepLabWV3Plus, 32), {"norm_layer": _HEAD_ONLY}
    yield Network("DeepLabV3b+", "wideresnet", "-", built, _pixels_loss, 32, False, impossible)
    for aux in ("no", "yes"):
        built = _segmentation(FastSCNN, 64, aux=aux == "yes")
        yield Network("FastSCNN", "own (MobileNetV2)", aux, built, _pixels_loss, 64, True)
    for backbone, make in (
        ("mobilenet0.25", yolo3.yolo3_mobilenet0_25_custom),
        ("mobilenet1.0", yolo3.yolo3_mobilenet1_0_custom),
        ("darknet53", yolo3.yolo3_darknet53_custom),
    ):
        built, by_default = partial(_yolo, make), backbone == "mobilenet0.25"
        yield Network("YOLO3", backbone, "-", built, _yolo_loss, 64, by_default)
    for backbone in ("resnet18_v1b", "resnet50_v1b", "resnet101_v1d", "resnest50"):
        row = ("Faster/Mask R-CNN, FPN", backbone, "-", partial(_RcnnFeatures, backbone))
        more = {"plain": _NotFrozen, "convertible": _NotFrozen}
        by_default, impossible = backbone == "resnet18_v1b", {"freeze_bn": _SYMBOL}
        yield Network(*row, weighted_loss, 64, by_default, impossible, **more)
    row, impossible = ("Mask R-CNN, mask head", "-", "-", _mask_head), {"norm_layer": _MASK}
    more = {"convertible": contrib.nn.SyncBatchNorm}
    yield Network(*row, _masks_loss, 14, True, impossible, **more)
    for family, backbone, make in (
        ("SimplePose", "resnet18_v1b", simple_pose_resnet.simple_pose_resnet18_v1b),
        ("SimplePose", "resnet50_v1b", simple_pose_resnet.simple_pose_resnet50_v1b),
        ("MobilePose", "resnet18_v1b", mobile_pose.mobile_pose_resnet18_v1b),
        ("MobilePose", "mobilenet1.0", mobile_pose.mobile_pose_mobilenet1_0),
    ):
        by_default = family == "SimplePose" and backbone == "resnet18_v1b"
        row = (family, backbone, "-", partial(_pose, make))
        yield Network(*row, weighted_loss, 64, by_default, {"norm_layer": _POSE})
    yield Network("AlphaPose", "resnet50", "-", _alpha_pose, weighted_loss, 64)


NETWORKS = [*_everything()]


class OneDevice:
    """The whole batch on one device with plain layers: parameters before, results after."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.values: dict[str, np.ndarray] = {}
        self._steps: dict[bool, Step] = {}

    def step(self, frozen: bool) -> Step:
        if frozen not in self._steps:
            net = self.network.build(self.network.plain, 1)
            batch = make_images(self.network.size, 1, self.network.loss)
            if self.values:
                load(net, contexts(1), self.values)
            else:
                self.values = randomize(net, batch)
            if frozen:
                freeze_bn(net)
            net.hybridize()
            self._steps[frozen] = train_step(net, batch, contexts(1))
        return self._steps[frozen]

    def require_same(self, net: Any, frozen: bool = False) -> None:
        """Require that a network on several devices, which has been loaded, takes the same step."""
        batch = make_images(self.network.size, DEVICES, self.network.loss)
        found = train_step(net, batch, contexts(DEVICES))
        compare(found, self.step(frozen), self.network.tolerance, out=1e-8, running=1e-6)
