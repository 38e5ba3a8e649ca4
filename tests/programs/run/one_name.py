"""A Module and a network of Gluon, whose layers have one name."""

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, save, split, x

bn = mx.sym.contrib.SyncBatchNorm(mx.sym.var("data"), ndev=2, key="a", name="bn", fix_gamma=False)
module = mx.mod.Module(bn, label_names=None, context=ctx)
module.bind([("data", x.shape)])
module.init_params()
module.forward(mx.io.DataBatch([mx.nd.array(x)]), is_train=True)
mx.nd.waitall()
net = gluon.contrib.nn.SyncBatchNorm(num_devices=2, prefix="bn_")
net.initialize(ctx=ctx)
net.hybridize()
for _ in range(3):
    with mx.autograd.record():
        outs = [net(part) for part in split(x)]
    mx.nd.waitall()
save(outs)
