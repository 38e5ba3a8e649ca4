"""The batch normalization layers of GluonCV's networks, and which of them wait for each other."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from typing import Any, List, Tuple

import mxnet as mx

SIZE = 480

# Channels of the layers whose exchanges are under way together, in the order of calls.
Levels = List[Tuple[int, ...]]


def levels_of(symbol: Any, size: int = SIZE) -> Levels:
    """Group the normalizations of a graph by how many of them lie on the longest way to each.

    Parameters
    ----------
    symbol : mxnet.symbol.Symbol
        With one free input, ``data``.
    size : int
        Height and width of the images, of three channels.
    """
    shapes, _, _ = symbol.infer_shape(data=(2, 3, size, size))
    shape_of = dict(zip(symbol.list_arguments(), shapes))
    nodes = json.loads(symbol.tojson())["nodes"]
    depth: list[int] = []
    levels: dict[int, list[int]] = {}
    for node in nodes:
        before = max((depth[source] for source, *_ in node["inputs"]), default=0)
        is_norm = node["op"] == "BatchNorm"
        depth.append(before + is_norm)
        if is_norm:
            gamma = nodes[node["inputs"][1][0]]["name"]
            levels.setdefault(before, []).append(shape_of[gamma][0])
    return [tuple(levels[level]) for level in sorted(levels)]


def networks() -> dict[str, Levels]:
    """GluonCV's segmentation networks on ResNet-50, as they are trained: with auxiliary head."""
    from gluoncv.model_zoo import FCN, DeepLabV3, PSPNet

    found = {}
    for name, family in (("FCN", FCN), ("PSPNet", PSPNet), ("DeepLabV3", DeepLabV3)):
        # Their constructors print and warn of what concerns initialization only.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = family(
                nclass=21, backbone="resnet50", aux=True, pretrained_base=False, crop_size=SIZE
            )
            outputs = net(mx.sym.var("data"))
        found[f"{name}-ResNet50"] = levels_of(mx.sym.Group(list(outputs)))
    return found
