"""A thread per device makes the first call of a network."""

import sys
import threading
import time

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, dy, save, split, x
from tests.support.either_mxnet import HybridBlock

calls = []


class Slow(HybridBlock):
    def hybrid_forward(self, F, x):
        calls.append(x)
        time.sleep(0.3)  # the other thread comes meanwhile
        return x


kinds = gluon.nn if hasattr(gluon.nn, "SyncBatchNorm") else gluon.contrib.nn
net = gluon.nn.HybridSequential()
net.add(Slow(), kinds.SyncBatchNorm(num_devices=2))
net.initialize(ctx=ctx)
if "hybridize" in sys.argv:
    net.hybridize()
xs, outs = split(x), [None, None]


def call(i):
    xs[i].attach_grad()
    with mx.autograd.record():
        outs[i] = net(xs[i])


threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert len(calls) == (1 if "hybridize" in sys.argv else 2)
mx.autograd.backward(outs, split(dy))
save(outs, dx=[each.grad for each in xs])
