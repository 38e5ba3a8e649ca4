"""Copies of networks are made without a constructor. MXNet puts all on one context."""

import copy
import multiprocessing
import pickle
import sys

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, save, split, x


def step(net):
    for each in net.collect_params().values():
        each.reset_ctx(ctx)
    with mx.autograd.record():
        outs = [net(part) for part in split(x)]
    mx.nd.waitall()
    return outs


def train(pickled):
    save(step(pickle.loads(pickled)))


make = copy.deepcopy if sys.argv[1] == "deepcopy" else lambda net: pickle.loads(pickle.dumps(net))
if __name__ == "__main__":
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.BatchNorm())
    net.initialize()
    if sys.argv[1] == "spawn":
        pickled = pickle.dumps(net)
        child = multiprocessing.get_context("spawn").Process(target=train, args=(pickled,))
        child.start()
        child.join()
    else:
        before = make(net)
        step(net)
        after = make(net)
        after.hybridize()
        save(step(net), before=step(before), after=step(after))
