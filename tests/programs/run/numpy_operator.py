"""The operator that MXNet 2's own layer calls."""

import sys

import mxnet as mx
from mxnet import gluon, npx

from tests.programs.run.data import ctx, save, split, x


class Norm(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        shape = {"shape": (4,), "init": "zeros"}
        self.gamma, self.beta = (gluon.Parameter(name, **shape) for name in ("gamma", "beta"))
        self.mean, self.var = (
            gluon.Parameter(name, grad_req="null", **shape) for name in ("mean", "var")
        )

    def forward(self, x):
        arrays = (each.data(x.device) for each in (self.gamma, self.beta, self.mean, self.var))
        return npx.sync_batch_norm(x, *arrays, ndev=2, key="k", fix_gamma=True, eps=1e-5)


net = Norm()
net.initialize(ctx=ctx)
net.hybridize("hybridize" in sys.argv)
with mx.autograd.record():
    outs = [net(part) for part in split(x)]
save(outs)
