"""The shape of GluonCV's detection scripts, on plain BatchNorm and with mixed precision."""

import contextlib

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp

from tests.programs.run.data import ctx, save, split, x

amp.init()


class Own(gluon.nn.BatchNorm):
    def hybrid_forward(self, F, x, **parameters):
        return 2 * super().hybrid_forward(F, x, **parameters)


class Same(gluon.nn.BatchNorm):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._kwargs["cudnn_off"] = True


net = gluon.nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(gluon.nn.BatchNorm(), Own(), Same())
relu = gluon.nn.BatchNormReLU(in_channels=1)
relu.initialize()
with contextlib.suppress(mx.base.MXNetError):  # CPU contexts need oneDNN for this operator
    relu(mx.nd.ones((1, 1)))
net.initialize()
net(mx.nd.ones((1, 4, 5, 5)))
net.collect_params().reset_ctx(ctx)
net.hybridize(static_alloc=True)
options = {"learning_rate": 0.1}
trainer = gluon.Trainer(net.collect_params(), "sgd", options, update_on_kvstore=False)
amp.init_trainer(trainer)
for _ in range(2):
    with autograd.record():
        losses = [net(part).square().sum() for part in split(x)]
        with amp.scale_loss(losses, trainer) as scaled:
            autograd.backward(scaled)
    trainer.step(4)
save([mx.nd.array(x)], mean=net[0].running_mean.list_data())
