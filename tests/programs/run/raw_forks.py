"""A child that the program forks during a first call of another thread, and ends by os._exit."""

import os
import threading
import time

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, save, split, x

begun = threading.Event()


class Slow(gluon.nn.HybridSequential):
    def hybrid_forward(self, F, x):
        begun.set()
        time.sleep(0.5)  # the program forks now
        return super().hybrid_forward(F, x)


def train(net):
    net.initialize(ctx=ctx)
    net.hybridize()
    with mx.autograd.record():
        outs = [net(part) for part in split(x)]
    mx.nd.waitall()
    return outs


def make(kind=gluon.nn.HybridSequential):
    net = kind()
    net.add(gluon.nn.BatchNorm())
    return net


save(train(make()))  # what the first operator prepares is no part of this
thread = threading.Thread(target=train, args=(make(Slow),))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    train(make())
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
