"""Trains and exports a network with an installed wheel, for scripts/test_wheel.sh."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

random = mx.np.random if mx.__version__.startswith("2.") else mx.nd.random

assert gluon_syncbn.__file__.startswith(sys.prefix), gluon_syncbn.__file__
assert Path(gluon_syncbn.__file__).with_name("docs").joinpath("troubleshooting.md").is_file()
assert not any(map(shutil.which, ("c++", "g++", "gcc", "cc"))), os.environ["PATH"]
contexts = [mx.cpu(0), mx.cpu(1)]
net = nn.HybridSequential()
net.add(nn.Conv2D(8, 3), gluon_syncbn.SyncBatchNorm(), nn.Activation("relu"), nn.Dense(2))
net.initialize(mx.init.Xavier(), ctx=contexts)
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
shards = gluon.utils.split_and_load(random.normal(0, 1, (8, 3, 8, 8)), contexts)
losses = []
for _ in range(5):
    with autograd.record():
        parts = [((net(shard) - 1) ** 2).mean() for shard in shards]
    autograd.backward(parts)
    trainer.step(2)
    losses.append(sum(part.asnumpy().sum() for part in parts))
assert losses[-1] < losses[0], losses
gluon_syncbn.check_in_sync(net)
net.export("net")
x = random.normal(0, 1, (2, 3, 8, 8))
np.save("x.npy", x.asnumpy())
np.save("y.npy", net(x).asnumpy())
print("losses", losses)
