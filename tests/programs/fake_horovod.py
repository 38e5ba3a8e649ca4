"""A Horovod of one process, in which there is nothing to exchange."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import gluon_syncbn
import mxnet as mx

from tests.programs.two_devices import contexts, make_layer
from tests.support.either_mxnet import nd


class Trainer(mx.gluon.Trainer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, kvstore=None)

    def _allreduce_grads(self) -> None:
        pass


def trainer_sums_over_contexts(grad_req: str) -> None:
    module: Any = SimpleNamespace(DistributedTrainer=Trainer)
    sys.modules.update({"horovod": SimpleNamespace(mxnet=module), "horovod.mxnet": module})
    net = make_layer()
    net.beta.grad_req = grad_req
    trainer = gluon_syncbn.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1})
    with mx.autograd.record():
        outs = [net(nd.ones((2 + i, 3), ctx=c)) for i, c in enumerate(contexts)]
    mx.autograd.backward(outs)
    trainer.step(1)
    for array in net.beta.list_data():
        assert (array.asnumpy() == -5).all(), array
