"""A layer of one device, and operators that cannot be replaced."""

import mxnet as mx

layer = mx.gluon.contrib.nn.SyncBatchNorm(num_devices=1)
layer.initialize()
with mx.autograd.record():
    layer(mx.nd.ones((2, 3)))
bn = mx.sym.contrib.SyncBatchNorm(mx.sym.var("data"), name="bn", key="bn", output_mean_var=True)
print(bn.list_outputs())
bn.simple_bind(mx.cpu(), data=(2, 3))
arrays = [mx.nd.array(each) for each in ([[1, 2], [3, 6]], [1, 1], [0, 0], [0, 0], [1, 1])]
with mx.autograd.record():
    outputs = mx.nd.contrib.SyncBatchNorm(*arrays, key="nd", output_mean_var=True)
print(outputs[1].asnumpy(), outputs[2].asnumpy())
