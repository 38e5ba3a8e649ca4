"""Every worker of several CPU contexts computes with one thread, whoever made it and when."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

# Asks all workers of some contexts how many threads OpenMP would give them. Each waits for its
# colleagues, so that every one is asked.
WORKERS = """
import ctypes, os, threading
import gluon_syncbn
import mxnet as mx

library = mx.base._LIB
Operation = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

class Context(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("index", ctypes.c_int32)]

def threads_of_workers(index, number):
    found = []
    together = threading.Barrier(number)
    def ask(*_):
        together.wait(60)
        found.append(library.omp_get_max_threads())
    operation = Operation(ask)
    for _ in range(number):
        mx.base.check_call(library.MXEnginePushSync(
            operation, None, None, ctypes.byref(Context(1, index)), None, 0, None, 0,
            ctypes.byref(ctypes.c_int(0)), 0, b"Ask"))
    mx.nd.waitall()
    assert len(found) == number
    return found

def call(indices, num_devices=None):
    contexts = [mx.cpu(i) for i in indices]
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=num_devices)
    layer.hybridize(num_devices is not None)  # else it has to be the number of contexts
    layer.initialize(ctx=contexts)
    with mx.autograd.record():
        outputs = [layer(mx.nd.ones((2, 3), ctx=context)) for context in contexts]
    mx.autograd.backward(outputs)
    mx.nd.waitall()
"""


@pytest.mark.parametrize(
    ("indices", "workers", "settings"),
    [
        ((0, 1), 1, {}),
        ((0, 1), 2, {"MXNET_CPU_WORKER_NTHREADS": "2"}),
        ((1, 2), 16, {"MXNET_ENGINE_TYPE": "ThreadedEngine"}),
    ],
    ids=["default", "two workers a context", "workers of all contexts"],
)
def test_all_workers(indices, workers, settings):
    run_python(
        WORKERS
        + f"""
assert max(threads_of_workers({indices[0]}, {workers})) > 1
call({indices})
call((4, 5), num_devices=1)  # which do not wait for each other, but convolutions may
for index in ({indices[0]}, {indices[1]}, 4, 5):
    assert threads_of_workers(index, {workers}) == [1] * {workers}, index
""",
        OMP_NUM_THREADS="2",
        **settings,
    )


def test_no_other_contexts_start_workers():
    run_python(
        WORKERS
        + """
def threads():
    return len(os.listdir("/proc/self/task"))
call([0, 1])
before = threads()
call([100, 101])
assert threads() <= before + 6, (before, threads())
"""
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_fork(workers):
    """MXNet ends its workers before it, and starts others in parent and child."""
    run_python(
        WORKERS
        + f"""
call([0, 1])
child = os.fork()
if child == 0:
    # In a child MXNet has one worker for each context by default.
    found = [threads_of_workers(index, 1) for index in (0, 1)]
    os._exit(0 if found == [[1], [1]] else 3)
assert os.waitpid(child, 0)[1] == 0
for index in (0, 1):
    assert threads_of_workers(index, {workers}) == [1] * {workers}, index
""",
        OMP_NUM_THREADS="2",
        MXNET_CPU_WORKER_NTHREADS=str(workers),
    )
