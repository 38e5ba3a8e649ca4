"""BatchNorm nodes that no layer made."""

import sys
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, save, split, x

data = mx.sym.var("data")
bn = mx.sym.BatchNorm(data, fix_gamma=False, eps=1e-5, name="bn")
if sys.argv[1] == "module":
    module = mx.mod.Module(bn, label_names=None, context=ctx)
    module.bind([("data", x.shape)])
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.array(x)]), is_train=True)
    outs = module.get_outputs()
    assert "Custom" not in module.symbol.tojson()
elif sys.argv[1] == "feedforward":
    outs = []
    output = mx.sym.LinearRegressionOutput(bn, mx.sym.var("label"))  # its output is its input
    model = mx.model.FeedForward(output, ctx=ctx, num_epoch=1)
    model.fit(
        mx.io.NDArrayIter(x, x, batch_size=len(x), label_name="label"),
        eval_metric=mx.metric.np(lambda _, out: outs.append(mx.nd.array(out)) or 0),
    )
    model.predict(mx.io.NDArrayIter(x, batch_size=len(x)))
    assert "Custom" not in model.symbol.tojson()
elif sys.argv[1] == "statistics":  # that are inputs
    block = gluon.SymbolBlock(bn, [data, *map(mx.sym.var, bn.list_auxiliary_states())])
    block.initialize("zeros", ctx=ctx)
    block.collect_params(".*gamma").initialize("ones", ctx=ctx, force_reinit=True)
    with mx.autograd.record():
        outs = [
            block(part, mx.nd.zeros(4, ctx=part.ctx), mx.nd.ones(4, ctx=part.ctx))
            for part in split(x)
        ]
else:
    bn.save("bn-symbol.json")
    block = gluon.SymbolBlock.imports("bn-symbol.json", ["data"])
    net = gluon.nn.HybridSequential()
    net.add(block, gluon.nn.Flatten())
    block.initialize("zeros")
    block.collect_params(".*(gamma|var)").initialize("ones")
    net.hybridize(sys.argv[1] == "hybridized")

    def call(part):
        with mx.autograd.record():
            return net(part)

    for moved in (ctx, [mx.cpu(3), mx.cpu(2)], ctx[:1], ctx):
        net.collect_params().reset_ctx(moved)
        if sys.argv[1] == "converted":
            import gluon_syncbn

            gluon_syncbn.convert_sync_batchnorm(net)
        calls = map if sys.argv[1] != "threads" else ThreadPoolExecutor().map
        outs = list(calls(call, [a.as_in_context(c) for a, c in zip(split(x), moved)]))
save(outs)
