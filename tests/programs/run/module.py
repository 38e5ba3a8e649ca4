"""A Module with the operator as a symbol, and calls of the operator on arrays."""

import mxnet as mx
from mxnet.symbol.contrib import SyncBatchNorm

from tests.programs.run.data import ctx, dy, save, split, x

bn = SyncBatchNorm(mx.sym.var("data"), ndev=2, key="a", fix_gamma=False, eps=1e-5)
bn = mx.sym.MakeLoss(bn * mx.sym.var("label"))
module = mx.mod.Module(bn, label_names=["label"], context=ctx)
module.bind([("data", x.shape)], [("label", x.shape)], inputs_need_grad=True)
module.init_params()
module.forward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(dy)]), is_train=True)
module.backward()

options = {"ndev": 2, "key": "b", "fix_gamma": False, "eps": 1e-5, "name": "b"}
arrays = [[mx.nd.array(each, ctx=c) for each in ([0] * 4, [1] * 4)] for c in ctx]
with mx.autograd.record():
    outs = [
        mx.nd.contrib.SyncBatchNorm(part, ones, zeros, zeros.copy(), ones.copy(), **options)
        for part, (zeros, ones) in zip(split(x), arrays)
    ]
var = module._exec_group.execs[1].aux_dict["syncbatchnorm0_moving_var"]
save(outs, product=module.get_outputs(), dx=module.get_input_grads(), var=[var])
