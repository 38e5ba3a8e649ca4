"""Files and a summary of a network."""

from pathlib import Path

import mxnet as mx
import numpy as np
import onnxruntime
from mxnet.gluon import nn

from tests.programs.run.data import ctx, split, x
from tests.support.either_mxnet import nd

net = nn.HybridSequential()
net.add(nn.BatchNorm(epsilon=0.1), nn.BatchNorm(scale=False, gamma_initializer=mx.init.Constant(3)))
net.initialize(ctx=ctx)
net.hybridize()
with mx.autograd.record():
    outs = [net(part) for part in split(x)]
mx.nd.waitall()
net.export("net")
print("Custom" in Path("net-symbol.json").read_text())
if not mx.__version__.startswith("2."):
    net(mx.sym.var("data")).save("saved-symbol.json")
    module = mx.mod.Module(mx.sym.load("saved-symbol.json"), label_names=None, context=ctx)
    module.bind([("data", x.shape)], for_training=False)
    module.init_params()
    module.save_checkpoint("module", 1)
    print(*(Path(f"{name}-symbol.json").read_text() for name in ("net", "saved", "module")))
mx.viz.print_summary(mx.sym.load("net-symbol.json"), {"data": x.shape})
mx.onnx.export_model("net-symbol.json", "net-0000.params", [x.shape], "float32", "net.onnx")
session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
expected = net(nd.array(x, ctx=ctx[0])).asnumpy()
(found,) = session.run(None, {"data": x.astype("float32")})
np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
