"""A child that the program forks during a first call of another thread, and ends by os._exit."""

import os
import threading
import time

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, save, split, x

begun = threading.Event()


class Slow(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        begun.set()
        time.sleep(0.5)  # the program forks now
        return F.square(x)


def call():
    net = Slow()
    net.hybridize()
    net(split(x)[0])


def train():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.BatchNorm())
    net.initialize(ctx=ctx)
    net.hybridize()
    with mx.autograd.record():
        outs = [net(part) for part in split(x)]
    mx.nd.waitall()
    return outs


save(train())  # what the first operator prepares is no part of this
thread = threading.Thread(target=call)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    train()
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
