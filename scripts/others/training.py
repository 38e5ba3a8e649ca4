"""Trains a network of another project for two steps in float64, and writes what it has then.

A process of its own runs this: either plainly, on one context with BatchNorm, or on several with
SyncBatchNorm, under gluon-syncbn run. Nothing here imports gluon_syncbn.

    training.py PROGRAM CONTEXTS FILE FOLDER ...    (FOLDER: goes to sys.path)
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from typing import Any, Callable

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

BATCH = 4
STEPS = 2
OPTIMIZER = {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.05, "rescale_grad": 1 / BATCH}

Features = Callable[[Any], Any]  # from the function that makes a norm to the last features


def sync_batch_norm(contexts: int) -> Callable:
    """Return a function with the arguments of mx.sym.BatchNorm that synchronizes."""
    if contexts == 1:
        return mx.sym.BatchNorm

    def norm(data: Any, **arguments: Any) -> Any:
        key = str(arguments.get("name"))
        arguments.pop("cudnn_off", None)
        return mx.sym.contrib.SyncBatchNorm(data, ndev=contexts, key=key, **arguments)

    return norm


def simpledet(module: str, builder: str, contexts: int, **options: Any) -> Any:
    """Return the last features of a backbone of SimpleDet, made small."""
    import mxnext  # type: ignore[import-not-found]

    network = getattr(importlib.import_module(module), builder)
    network.depth_config = {50: (1, 2, 2, 1)}
    kind = "local" if contexts == 1 else "sync"
    normalizer = mxnext.normalizer_factory(type=kind, ndev=contexts, wd_mult=0.5)
    made = network().get_backbone(depth=50, normalizer=normalizer, fp16=False, **options)
    return made[-1] if isinstance(made, tuple) else made


TRIDENT: dict[str, Any] = {
    "endpoint": "c4",
    "num_trident_block": 1,
    "num_branch": 3,
    "branch_dilates": [1, 2, 3],
    "branch_ids": [0, 1, 2],
    "branch_bn_shared": True,
    "branch_conv_shared": True,
    "branch_deform": False,
}


def neck(builder: str, method: str, contexts: int) -> Any:
    """Return the features of a neck of SimpleDet's FPG, which makes its layers under a prefix."""
    import mxnext

    backbone = importlib.import_module("mxnext.backbone.resnet_v1b").Builder
    backbone.depth_config = {50: (1, 1, 1, 1)}
    kind = "local" if contexts == 1 else "sync"

    class Parameters:
        dim_reduced = 8
        num_stage = 2
        S0_kernel = 1
        normalizer = staticmethod(mxnext.normalizer_factory(type=kind, ndev=contexts))

    made = backbone().get_backbone("mxnet", 50, "fpn", Parameters.normalizer, False)
    neck = getattr(importlib.import_module("models.FPG.builder"), builder)(Parameters)
    levels = getattr(neck, method)(made)
    levels = levels.values() if isinstance(levels, dict) else levels
    pooled = [mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)) for x in levels]
    return mx.sym.concat(*pooled, dim=1)


def with_batch_norm(module: str, make: Callable[[Any], Any], contexts: int) -> Any:
    """Return features of a program that calls mx.sym.BatchNorm, with SyncBatchNorm there."""
    mx.sym.BatchNorm = mx.symbol.BatchNorm = sync_batch_norm(contexts)
    mx.sym.Dropout = mx.symbol.Dropout = lambda data, **_: mx.sym.identity(data)
    made = make(importlib.import_module(module))
    return made[0] if isinstance(made, (tuple, list)) else made


def insightface(name: str, contexts: int, **settings: Any) -> Any:
    """Return the embedding of a network of insightface's arcface_mxnet."""
    sample = importlib.import_module("sample_config")
    sys.modules["config"] = sample
    sample.config.update(emb_size=8, **settings)
    return with_batch_norm(f"symbol.{name}", lambda module: module.get_symbol(), contexts)


def classifier(name: str, features: str, contexts: int, **settings: Any) -> Any:
    """Return the features of a symbol of MXNet's example/image-classification."""
    settings = {"num_classes": 5, "image_shape": "3,64,64", **settings}
    make = partial(with_batch_norm, f"symbols.{name}", lambda module: module.get_symbol(**settings))
    return make(contexts).get_internals()[f"{features}_output"]


SYMBOLS: dict[str, Callable[[int], Any]] = {
    "SimpleDet ResNet v1": partial(
        simpledet, "mxnext.backbone.resnet_v1", "Builder", variant="mxnet", endpoint="c4c5"
    ),
    "SimpleDet ResNet v1b": partial(
        simpledet, "mxnext.backbone.resnet_v1b", "Builder", variant="mxnet", endpoint="c4c5"
    ),
    "SimpleDet ResNet v1d": partial(
        simpledet, "mxnext.backbone.resnet_v1d", "Builder", endpoint="fpn"
    ),
    "SimpleDet ResNet v2": partial(
        simpledet, "mxnext.backbone.resnet_v2", "Builder", variant="mxnet", endpoint="c4c5"
    ),
    "SimpleDet TridentNet v1b": partial(
        simpledet, "models.tridentnet.resnet_v1b", "TridentResNetV1bBuilder", **TRIDENT
    ),
    "SimpleDet TridentNet v2": partial(
        simpledet,
        "models.tridentnet.resnet_v2",
        "TridentResNetV2Builder",
        variant="mxnet",
        **TRIDENT,
    ),
    "SimpleDet FPG": partial(neck, "FPGNeckP2P6", "get_fpg_neck"),
    "SimpleDet PAFPN": partial(neck, "PAFPNNeckP2P6", "get_pafpn_neck"),
    "insightface r50": partial(insightface, "fresnet", num_layers=18, net_output="E"),
    "insightface r50, v1": partial(insightface, "fresnet", num_layers=18, net_unit=1, net_se=1),
    "insightface MobileFaceNet": partial(insightface, "fmobilefacenet", net_output="GDC"),
    "MXNet example resnet": partial(classifier, "resnet", "flatten0", num_layers=18),
    "MXNet example resnext": partial(classifier, "resnext", "flatten0", num_layers=18, num_group=4),
    "MXNet example inception-bn": partial(classifier, "inception-bn", "ch_concat_5b_chconcat"),
    "MXNet example mobilenet": partial(classifier, "mobilenet", "flatten", resolution=64),
}


def gluoncv2(name: str) -> Any:
    """Return a classifier of imgclsmob, whose package is called gluoncv2."""
    return importlib.import_module("gluoncv2.model_provider").get_model(name, classes=5)


BLOCKS: dict[str, Callable[[], Any]] = {
    "ResNeSt resnest50": lambda: importlib.import_module("resnest.gluon").resnest50(classes=5),
    "imgclsmob resnet10": partial(gluoncv2, "resnet10"),
    "imgclsmob efficientnet_b0": partial(gluoncv2, "efficientnet_b0"),
    "imgclsmob shufflenetv2_wd2": partial(gluoncv2, "shufflenetv2_wd2"),
    "imgclsmob mobilenetv3_small_w7d20": partial(gluoncv2, "mobilenetv3_small_w7d20"),
}


def batches(program: str) -> Any:
    """Return the data of all steps, with a mean and a deviation that differ from image to image."""
    side = {"insightface": 112, "ResNeSt": 224, "imgclsmob": 224}.get(program.split()[0], 64)
    random = np.random.RandomState(3)
    images = random.standard_normal((STEPS * BATCH, 3, side, side))
    scale = 1 + random.random_sample((STEPS * BATCH, 3, 1, 1)) * 30
    return mx.nd.array(images * scale + scale, dtype="float64")


def train_symbol(program: str, contexts: int) -> dict[str, Any]:
    """Train with Module.fit; SimpleDet's programs with its DetModule."""
    module_class: Any = mx.mod.Module
    if program.startswith("SimpleDet"):
        module_class = importlib.import_module("core.detection_module").DetModule
    features = mx.sym.reshape(SYMBOLS[program](contexts), shape=(0, 0, -1, 1))
    pooled = mx.sym.Pooling(features, global_pool=True, pool_type="avg", kernel=(1, 1))
    scores = mx.sym.FullyConnected(pooled, num_hidden=4, name="scores")
    # TridentNet's branches make several rows of each image.
    scores = mx.sym.tanh(mx.sym.reshape(scores, shape=(BATCH // contexts, -1)))
    error = mx.sym.square(mx.sym.broadcast_sub(scores, mx.sym.var("label")))
    loss = mx.sym.MakeLoss(mx.sym.mean(error, axis=1))
    images = batches(program)
    labels = mx.nd.full((STEPS * BATCH, 1), 0.3, dtype="float64")
    module = module_class(
        loss,
        data_names=["data"],
        label_names=["label"],
        context=[mx.cpu(i) for i in range(contexts)],
    )
    mx.random.seed(5)
    module.fit(
        mx.io.NDArrayIter(images, labels, batch_size=BATCH, label_name="label"),
        eval_metric=mx.metric.Loss(),
        # Without it MXNet's Module reads auxiliary states too early.
        batch_end_callback=lambda _: mx.nd.waitall(),
        optimizer="sgd",
        optimizer_params={**OPTIMIZER, "lr_scheduler": mx.lr_scheduler.FactorScheduler(1000)},
        initializer=mx.init.Xavier(),
        num_epoch=1,
    )
    arguments, auxiliaries = module.get_params()
    written = {**arguments, **auxiliaries}
    module.forward(mx.io.DataBatch([images[:BATCH]], [labels[:BATCH]]), is_train=False)
    for name in fixed_gammas(loss):
        written[name] = mx.nd.ones_like(written[name])
    return {**written, "loss in inference": module.get_outputs()[0]}


def fixed_gammas(symbol: Any) -> list[str]:
    """Return the names of gammas that no output depends on.

    MXNet's BatchNorm writes 1 into them, and weight decay changes them then.
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    return [
        nodes[node["inputs"][1][0]]["name"]
        for node in nodes
        if node["op"].endswith("BatchNorm") or node["op"] == "Custom"
        if node["attrs"].get("fix_gamma", "True") == "True"
    ]


def train_block(program: str, contexts: int) -> dict[str, Any]:
    """Train a Gluon network with its BatchNorm, of which run --convert makes SyncBatchNorm."""
    mx.random.seed(5)
    net = BLOCKS[program]()
    net.initialize(mx.init.Xavier(), force_reinit=True)
    net.cast("float64")
    net.apply(without_dropout)
    images = batches(program)
    net(images[:2])
    mx.nd.waitall()
    devices = [mx.cpu(i) for i in range(contexts)]
    net.collect_params().reset_ctx(devices)
    net.hybridize()
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {k: v for k, v in OPTIMIZER.items() if k != "rescale_grad"}
    )
    for step in range(STEPS):
        data = images[step * BATCH : (step + 1) * BATCH]
        with autograd.record():
            made = [net(x) for x in gluon.utils.split_and_load(data, devices)]
            outputs = [x[0] if isinstance(x, (tuple, list)) else x for x in made]
            losses = [(x.tanh() - 0.3).square().mean(axis=0, exclude=True).sum() for x in outputs]
        autograd.backward(losses)
        trainer.step(BATCH)
        mx.nd.waitall()
    prefix = len(net.prefix)
    written = {name[prefix:]: p.data(devices[0]) for name, p in net.collect_params().items()}
    output = net(images[:2])
    return {
        **written,
        "output in inference": output[0] if isinstance(output, (tuple, list)) else output,
    }


def without_dropout(block: Any) -> None:
    """Set the rates of Dropout and DropBlock to 0."""
    for name in ("_rate", "drop_prob"):
        if hasattr(block, name):
            setattr(block, name, 0)


def main(program: str, contexts: str, file: str, *folders: str) -> None:
    """Train, and write all parameters to a file."""
    sys.path[:0] = folders
    if program in SYMBOLS:
        written = train_symbol(program, int(contexts))
    else:
        written = train_block(program, int(contexts))
    np.savez(file, **{name: array.asnumpy() for name, array in written.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
