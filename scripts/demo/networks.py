"""GluonCV segmentation networks that differ only in their norm layer.

Every way of training takes the same network, from the same initial weights; only the class of
its norm layers and its contexts change.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
from gluoncv import model_zoo
from gluoncv.model_zoo.danet import DANet
from gluoncv.model_zoo.deeplabv3_plus import DeepLabV3Plus
from gluoncv.model_zoo.fastscnn import FastSCNN
from gluoncv.model_zoo.icnet import ICNet
from mxnet.gluon import nn

BASIC = ("resnet18", "resnet34")
BOTTLENECK = (
    "resnet50",
    "resnet101",
    "resnet152",
    "resnest50",
    "resnest101",
    "resnest200",
    "resnest269",
)


@dataclass(frozen=True)
class Family:
    """One family of GluonCV segmentation networks.

    The first of `backbones` is the default; there are none if the family has its own trunk. Images
    have sides that are multiples of `multiple`.
    """

    build: Any
    backbones: tuple[str, ...] = BOTTLENECK
    multiple: int = 8
    smallest: int = 32
    default_side: int = 48


FAMILIES: Mapping[str, Family] = {
    "fcn": Family(model_zoo.FCN, BASIC + BOTTLENECK),
    "psp": Family(model_zoo.PSPNet),
    "deeplab": Family(model_zoo.DeepLabV3),
    "deeplabplus": Family(DeepLabV3Plus, ("xception",)),
    "danet": Family(DANet),
    "icnet": Family(ICNet, multiple=32, smallest=64, default_side=64),
    "fastscnn": Family(FastSCNN, (), multiple=32, default_side=64),
}


@dataclass(frozen=True)
class Design:
    """What all ways of training share of the network.

    `model` is a key of `FAMILIES`, `backbone` empty for those with their own trunk.
    """

    model: str
    backbone: str
    classes: int
    side: int

    def check(self) -> None:
        """Raise `ValueError` if no network can be built."""
        family = FAMILIES[self.model]
        if self.backbone and not family.backbones:
            raise ValueError(f"{self.model} has its own trunk and takes no backbone")
        if self.backbone not in (family.backbones or ("",)):
            raise ValueError(
                f"{self.model} cannot be built on {self.backbone!r}; "
                f"choose from {', '.join(family.backbones)}"
            )
        if self.side % family.multiple or self.side < family.smallest:
            raise ValueError(
                f"{self.model} takes images with a side of at least {family.smallest} pixels and "
                f"a multiple of {family.multiple}, not {self.side}"
            )


@dataclass(frozen=True)
class Norm:
    """A norm layer to build a network with."""

    layer: Any = nn.BatchNorm
    settings: dict[str, Any] = field(default_factory=dict)
    fuse: bool = False


def build(design: Design, norm: Norm, contexts: Sequence[mx.Context], weights: Path) -> Any:
    """Build a network and load its weights on all contexts.

    The weights may be those of a network of the same design with norm layers of another class.
    """
    net = _construct(design, norm, contexts)
    net.load_parameters(str(weights), ctx=list(contexts))
    return gluon_syncbn.fuse(net) if norm.fuse else net


def save_initial_weights(design: Design, seed: int, path: Path) -> None:
    """Draw the initial weights that all ways of training start from."""
    mx.random.seed(seed)
    net = _construct(design, Norm(), [mx.cpu()])
    draw = mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
    net.initialize(draw, ctx=mx.cpu(), force_reinit=True)
    net(mx.nd.zeros((1, 3, design.side, design.side)))  # settles the shapes still open
    net.save_parameters(str(path))


def _construct(design: Design, norm: Norm, contexts: Sequence[mx.Context]) -> Any:
    """Construct a network of GluonCV's, without Dropout."""
    family = FAMILIES[design.model]
    options: dict[str, Any] = {
        "norm_layer": norm.layer,
        "norm_kwargs": dict(norm.settings),
        "ctx": list(contexts),
    }
    if design.backbone:
        options["backbone"] = design.backbone
    with contextlib.redirect_stdout(io.StringIO()):  # a constructor of GluonCV's prints
        net = family.build(
            nclass=design.classes,
            pretrained_base=False,
            aux=False,
            base_size=design.side,
            crop_size=design.side,
            **options,
        )
    if design.model == "fcn" and design.backbone in BASIC:
        _narrow_head(net, design.classes, norm)
    net.apply(_stop_dropout)
    return net


def _narrow_head(net: Any, classes: int, norm: Norm) -> None:
    """Give an FCN the head for the 512 channels of a basic-block backbone (GluonCV's has 2048)."""
    rate = next(iter(net.head.collect_params().values())).lr_mult
    with net.name_scope():
        net.head = type(net.head)(512, classes, norm_layer=norm.layer, norm_kwargs=norm.settings)
    net.head.collect_params().setattr("lr_mult", rate)


def _stop_dropout(block: Any) -> None:
    """Make a Dropout layer pass its input on.

    Dropout draws a mask of its own on every device, so with it no two ways of training could be
    compared step by step. With rate zero the layer is the identity in all of them.
    """
    if isinstance(block, nn.Dropout):
        block._rate = 0.0
