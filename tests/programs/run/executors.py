"""Executors of one symbol that a program binds itself, on each context one."""

import sys

import mxnet as mx

from tests.programs.run.data import ctx, save, split, x

data = mx.sym.var("data")
bn = mx.sym.contrib.SyncBatchNorm(data, ndev=2, key="a", fix_gamma=False, eps=1e-5, name="bn")
outs = []
for part, context in zip(split(x), ctx):
    values = [part, mx.nd.ones(4, context), mx.nd.zeros(4, context)]
    states = [mx.nd.zeros(4, context), mx.nd.ones(4, context)]
    if sys.argv[1] == "bind":
        executor = bn.bind(context, values, aux_states=states)
    else:
        executor = bn.simple_bind(context, data=part.shape)
        executor.copy_params_from(dict(zip(bn.list_arguments(), values)))
        executor.copy_params_from({}, dict(zip(bn.list_auxiliary_states(), states)))
    outs += executor.forward(is_train=True)
save(outs)
