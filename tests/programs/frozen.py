"""Converted layers whose gamma and beta are frozen, called in training and not."""

from __future__ import annotations

import sys

import gluon_syncbn
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn

from tests.support.either_mxnet import nd
from tests.support.step import MODES

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def make(mode: str, convert: bool = True, frozen: bool = True, **options) -> nn.HybridSequential:
    net = nn.HybridSequential()
    norm = nn.BatchNorm if convert else gluon_syncbn.SyncBatchNorm
    net.add(nn.Dense(3, in_units=4), norm(in_channels=3, **options))
    net.initialize(ctx=CONTEXTS)
    gluon_syncbn.convert_sync_batchnorm(net)
    if frozen:
        for parameter in net.collect_params().values():
            parameter.grad_req = "null"
    net.hybridize(**MODES[mode])
    return net


def call(net, train: bool = True) -> None:
    with autograd.record(train_mode=train):
        outs = [net(nd.ones((2, 4), ctx=ctx)) for ctx in CONTEXTS]
    for out in outs:
        out.wait_to_read()


def main(mode: str) -> None:
    call(make(mode, frozen=False))
    call(make(mode, convert=False))
    call(make(mode, center=False, scale=False))
    call(make(mode, use_global_stats=True))
    net = make(mode)
    call(net, train=False)
    print("no warning so far", file=sys.stderr, flush=True)
    for _ in range(2):
        call(net)
    call(make(mode))
