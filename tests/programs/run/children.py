"""Processes that a program starts train too, and longer than the program."""

import multiprocessing
import subprocess
import sys

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, save, split, x

kinds = gluon.nn if hasattr(gluon.nn, "SyncBatchNorm") else gluon.contrib.nn


def train(steps):
    net = kinds.SyncBatchNorm(num_devices=2)
    net.initialize(ctx=ctx)
    for _ in range(steps):
        with mx.autograd.record():
            outs = [net(part) for part in split(x)]
        mx.nd.waitall()
    save(outs)


if __name__ == "__main__" and "again" in sys.argv:
    train(2)
elif __name__ == "__main__":
    train(1)
    list(gluon.data.DataLoader(list(range(2)), 1, num_workers=1))  # its process says nothing
    if sys.argv[1] == "subprocess":
        children = [subprocess.Popen([sys.executable, __file__, "again"]) for _ in range(2)]
        assert [each.wait() for each in children] == [0, 0]
    else:
        child = multiprocessing.get_context(sys.argv[1]).Process(target=train, args=(2,))
        child.start()
        child.join()
        assert child.exitcode == 0
