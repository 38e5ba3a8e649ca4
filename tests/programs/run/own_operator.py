"""Blocks of the program's own that call MXNet's operators by the names that layers use."""

import sys

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, save, split, x


class OfMXNet(gluon.contrib.nn.SyncBatchNorm):
    """Calls the operator with all attributes of the layer."""

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        inputs = x, gamma, beta, running_mean, running_var
        return F.contrib.SyncBatchNorm(*inputs, name="fwd", **self._kwargs)


class Plain(gluon.HybridBlock):
    """A BatchNorm that is no layer, as programs that search for architectures have."""

    def __init__(self):
        super().__init__(prefix="plain_")
        with self.name_scope():
            for name in ("gamma", "beta", "running_mean", "running_var"):
                kind = "ones" if name in ("gamma", "running_var") else "zeros"
                grad_req = "null" if "running" in name else "write"
                parameter = self.params.get(name, shape=(4,), init=kind, grad_req=grad_req)
                setattr(self, name, parameter)

    def hybrid_forward(self, F, x, **parameters):
        given = {name.replace("running", "moving"): each for name, each in parameters.items()}
        return F.BatchNorm(x, **given, name="fwd")


net = gluon.nn.HybridSequential()
net.add(OfMXNet(num_devices=2, in_channels=4))
other = gluon.nn.HybridSequential()
other.add(Plain())
for each in (net, other):
    each.initialize(ctx=ctx)
    each.hybridize(sys.argv[1] == "hybridize")
with mx.autograd.record():
    outs = [net(part) for part in split(x)]
    for out in outs * 2:
        other(out)
save(outs)
