"""A processor in the place of the GPU of scripts/benchmark_gpu.py, with NumPy's arrays."""

from __future__ import annotations

import time

import numpy as np


class HostDevice:
    """A `gpu_benchmarks.device.Device` for the library built with emulated GPUs."""

    def __init__(self, bridge):
        self._bridge = bridge
        self.timed = []  # streams of each measurement

    def describe(self):
        return {"gpu": "none"}

    def free_bytes(self):
        return 1 << 30

    def normal(self, shape, dtype, seed):
        return np.random.default_rng(seed).standard_normal(shape).astype(dtype)

    def full(self, shape, dtype, value):
        return np.full(shape, value, dtype)

    def address(self, array):
        return array.ctypes.data

    def double(self, array):
        return array.astype(np.float64)

    def copy(self, to, source):
        np.copyto(to, source)

    def library_streams(self, bridge, contexts):
        return [bridge.stream(i) for i in range(contexts)]

    def seconds(self, work, streams):
        begin = time.perf_counter()
        work()
        self.finish()
        self.timed.append(list(streams))
        return time.perf_counter() - begin

    def finish(self):
        self._bridge.finish(8)
