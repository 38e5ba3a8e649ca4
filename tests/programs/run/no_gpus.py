"""Layers and operators for as many devices as there are GPUs: none."""

import mxnet as mx
import numpy as np

options = {"ndev": 0, "fix_gamma": False, "eps": 1e-5}
x = mx.nd.array([[1], [3]])
ones, zeros = mx.nd.ones(1), mx.nd.zeros(1)
arrays = [x, ones, zeros, zeros.copy(), ones.copy()]
symbol = mx.sym.contrib.SyncBatchNorm(mx.sym.var("data"), key="k", **options)
executor = symbol.bind(mx.cpu(), arrays[:3], aux_states=arrays[3:])
layer = mx.gluon.contrib.nn.SyncBatchNorm(in_channels=1, num_devices=0)
layer.initialize()
with mx.autograd.record():
    outs = [
        executor.forward(is_train=True)[0],
        mx.nd.contrib.SyncBatchNorm(*arrays, key="l", **options),
        mx.nd.contrib.SyncBatchNorm(*arrays, key="m", fix_gamma=False, eps=1e-5),
        layer(x),
    ]
for out in outs:
    np.testing.assert_allclose(out.asnumpy(), [[-1], [1]], atol=1e-4)
