"""The shape of GluonCV's scripts/segmentation/train.py.

A thread per device makes the first call of the hybridized network, the criterion has threads too,
and a second model evaluates.
"""

import sys
import time

import mxnet as mx
from gluoncv.model_zoo.segbase import SegEvalModel
from gluoncv.utils.parallel import DataParallelCriterion, DataParallelModel
from mxnet import autograd, gluon

from tests.programs.run.data import ctx, dy, save, x

traces = []


class Net(gluon.HybridBlock):
    def __init__(self, norm_layer, norm_kwargs):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.norm = norm_layer(**norm_kwargs)
            self.other = gluon.contrib.nn.basic_layers.SyncBatchNorm(num_devices=2)

    def hybrid_forward(self, F, x):
        if F is mx.sym:
            traces.append(x)
            time.sleep(0.3)  # the other thread comes meanwhile
        return self.norm(x), self.other(x)

    def evaluate(self, x):
        return self.forward(x)[0]


class Loss(gluon.HybridBlock):
    def hybrid_forward(self, F, out, other, dy):
        return (out * dy).sum() + 0 * other.sum()


model = Net(mx.gluon.contrib.nn.SyncBatchNorm, {"num_devices": len(ctx)})
model.initialize()
if "hybridize" in sys.argv:
    model.hybridize()
net = DataParallelModel(model, ctx, True)
evaluator = DataParallelModel(SegEvalModel(model), ctx)
criterion = DataParallelCriterion(Loss(), ctx, True)
data = mx.nd.array(x)
with autograd.record(True):
    outputs = net(data)
    losses = criterion(outputs, mx.nd.array(dy))
    mx.nd.waitall()
    autograd.backward(losses)
assert len(traces) == ("hybridize" in sys.argv), len(traces)
save(
    [out for out, _ in outputs],
    dgamma=[sum(each.as_in_context(ctx[0]) for each in model.norm.gamma.list_grad())],
    mean=model.norm.running_mean.list_data(),
    evaluated=[out[0] for out in evaluator(data)],
)
