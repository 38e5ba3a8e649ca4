"""A network whose norms are of a class of the program's own, called by the device."""

from __future__ import annotations

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn


class Norm(nn.BatchNorm):
    """With a forward of its own, so that the command has to try what it computes."""

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        return super().hybrid_forward(F, x, gamma, beta, running_mean, running_var)


contexts = [mx.cpu(0), mx.cpu(1)]
net = nn.HybridSequential()
for _ in range(40):
    net.add(nn.Conv2D(16, 3, padding=1, in_channels=16), Norm(in_channels=16))
net.initialize(ctx=contexts)
trainer = gluon.Trainer(net.collect_params(), "sgd")
xs = gluon.utils.split_and_load(mx.nd.random.normal(shape=(4, 16, 32, 32)), contexts)
for _ in range(2):
    with autograd.record():
        losses = [(net(x) ** 2).mean() for x in xs]
    autograd.backward(losses)
    trainer.step(4)
assert all(loss.asscalar() > 0 for loss in losses)
