"""A GPU context that does not exist is refused before MXNet ends the process for it."""

from __future__ import annotations

from tests.support.processes import run_python

# As the import does with an MXNet for CUDA.
PROGRAM = """
import sys
import mxnet as mx
import gluon_syncbn
from gluon_syncbn import missing_gpus
from mxnet.gluon import nn
missing_gpus.refuse()
mx.context.num_gpus = lambda: 1
def network():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3), gluon_syncbn.SyncBatchNorm())
    return net
net = network()
net.initialize(ctx=mx.cpu(0))
net(mx.nd.ones((1, 3, 4, 4)))
file = sys.argv[1]
net.save_parameters(file)
for call in sys.argv[2:]:
    try:
        exec(call)
    except mx.base.MXNetError as error:
        assert "gpu(1): MXNet finds 1 GPUs here" in str(error), (call, error)
    else:
        raise SystemExit("no error: " + call)
# Others are as before.
net.initialize(force_reinit=True)
net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
again = network()
again.load_parameters(file, ctx=mx.cpu(1))
assert again(mx.nd.ones((1, 3, 4, 4), ctx=mx.cpu(1))).shape == (1, 3, 2, 2)
"""


def test_refused(tmp_path):
    calls = [
        "nn.Dense(3, in_units=3).initialize(ctx=mx.gpu(1))",
        "nn.Dense(3).initialize(mx.init.Zero(), [mx.gpu(0), mx.gpu(1)])",
        "net.collect_params().reset_ctx([mx.gpu(1)])",
        "net[0].weight.reset_ctx(mx.gpu(1))",
        "network().load_parameters(file, ctx=mx.gpu(1))",
        "with mx.gpu(1): nn.Dense(3).initialize()",
    ]
    run_python(PROGRAM, str(tmp_path / "net.params"), *calls)
