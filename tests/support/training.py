"""Networks that a trainer trains on several devices, and on one with the whole batch."""

from __future__ import annotations

import dataclasses
import functools

import gluon_syncbn
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.networks import load, make_batch, randomize
from tests.support.step import MODES, Case, Step, compare, train


def training(net, ctx, case: Case, mode: str, values: dict) -> functools.partial:
    """Return a function that runs steps of a network with a trainer, from these values."""
    net.cast("float64")
    load(net, ctx, values)
    net.hybridize(**MODES[mode])
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3, "momentum": 0.9})
    return functools.partial(train, net, case, ctx, trainer)


def on_one(kind, case: Case, steps: int, norm=nn.BatchNorm) -> tuple[dict, Step]:
    """Return random values, and the end of training from them on one device with the whole batch.

    It is a CPU also where the others have GPUs: BatchNorm of cuDNN divides running variances by
    n - 1.
    """
    case, net = dataclasses.replace(case, shards=(len(case.x),)), kind(norm)
    values = randomize(net, case)
    return values, training(net, [mx.cpu()], case, "imperative", values)(steps)


def require_same_training(
    kind, number: int, mode: str = "imperative", steps: int = 5, alone=None, call=None
) -> None:
    """Several devices end where one with the whole batch does, whose network may be `alone`."""
    case = dataclasses.replace(make_batch(number), call=call)
    values, expected = on_one(alone or kind, case, steps, gluon_syncbn.SyncBatchNorm)
    net = kind(gluon_syncbn.SyncBatchNorm)
    found = training(net, contexts(number), case, mode, values)(steps)
    compare(found, expected, 1e-9)
