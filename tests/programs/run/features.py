"""As features of a network in GluonCV's detectors: a symbol, before parameters have contexts."""

import sys

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from tests.programs.run.data import ctx, save, split, x


def backbone():
    net = nn.HybridSequential(prefix="backbone_")
    with net.name_scope():
        net.add(nn.BatchNorm(), nn.Flatten())
    return net


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            net, data = backbone(), mx.sym.var("data")
            self.features = gluon.SymbolBlock([net(data)], [data], params=net.collect_params())

    def hybrid_forward(self, F, x):
        return self.features(x)


if "module" in sys.argv:
    module = mx.mod.Module(backbone()(mx.sym.var("data")), label_names=None, context=ctx)
    module.bind([("data", x.shape)])
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.array(x)]), is_train=True)
    outs = module.get_outputs()
else:
    net = Net()
    net.initialize()
    net.hybridize("hybridize" in sys.argv)
    with mx.autograd.record():  # on one context, as before a detector moves to its devices
        net(mx.nd.array(x)).wait_to_read()
    net.collect_params().reset_ctx(ctx)
    with mx.autograd.record():
        outs = [net(part) for part in split(x)]
save(outs)
mx.sym.BatchNorm(mx.sym.var("data")).simple_bind(mx.cpu(), data=(2, 3))
