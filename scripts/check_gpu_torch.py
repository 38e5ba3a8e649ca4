"""Compares steps on 1 to 8 GPU contexts with torch.nn.functional.batch_norm on the whole batch.

Needs a GPU and PyTorch with CUDA, no MXNet. scripts/check_gpu.sh builds the library that it takes.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from typing import Any

EPS, MOMENTUM = 1e-5, 0.9
ARRAYS = ("x", "dy", "y", "dx", "gamma", "beta", "mean", "var", "dgamma", "dbeta")
ELEMENTS = ("float32", "float64", "float16")  # in the order of core/element.h
TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 4e-3}
# Batch, channels, inner; those with inner = 1 are channel-last.
SHAPES = ((8, 3, 1), (16, 65, 49), (8, 256, 3600), (9, 64, 14161), (14400, 65, 1), (8192, 256, 1))


class Context(ctypes.Structure):
    """GpuStepContext of tests/native/bridge/gpu_step.cc."""

    _fields_ = [("outer", ctypes.c_int64), *((name, ctypes.c_void_p) for name in ARRAYS)]


def relative_error(actual: Any, expected: Any) -> float:
    """Greatest difference, relative to the greatest expected number."""
    difference = (actual.double() - expected.double()).abs().max()
    return float(difference / expected.double().abs().max().clamp(min=1e-30))


def step(
    torch: Any, library: Any, number: int, shape: tuple[int, int, int], dtype: str, mean: float
) -> float:
    """Greatest relative error of all results of one step."""
    outer, channels, inner = shape
    kind = getattr(torch, dtype)
    parameter = torch.float32 if dtype == "float16" else kind
    torch.manual_seed(0)
    x = (torch.randn(shape, device="cuda") + mean).to(kind)
    dy = torch.randn(shape, device="cuda").to(kind)
    gamma = torch.rand(channels, device="cuda").to(parameter) + 0.5
    beta = torch.randn(channels, device="cuda").to(parameter)

    # Sizes that differ, where there are enough samples.
    cuts = [outer * i * (i + 1) // (number * (number + 1)) for i in range(number + 1)]
    contexts, kept = (Context * number)(), []
    for i in range(number):
        own = {"x": x[cuts[i] : cuts[i + 1]].clone(), "dy": dy[cuts[i] : cuts[i + 1]].clone()}
        own.update(y=torch.empty_like(own["x"]), dx=torch.empty_like(own["x"]))
        own.update(gamma=gamma.clone(), beta=beta.clone())
        own.update(mean=torch.zeros_like(gamma), var=torch.ones_like(gamma))
        own.update(dgamma=torch.empty_like(gamma), dbeta=torch.empty_like(gamma))
        kept.append(own)
        contexts[i].outer = cuts[i + 1] - cuts[i]
        for name in ARRAYS:
            setattr(contexts[i], name, own[name].data_ptr())
    torch.cuda.synchronize()  # the library's streams do not wait for that of PyTorch
    error = library.gpu_step(
        number, contexts, ELEMENTS.index(dtype), channels, inner, EPS, MOMENTUM
    )
    if error is not None:
        raise SystemExit(error.decode())

    whole = x.double().requires_grad_()
    whole_gamma, whole_beta = gamma.double().requires_grad_(), beta.double().requires_grad_()
    out = torch.nn.functional.batch_norm(
        whole, None, None, whole_gamma, whole_beta, training=True, eps=EPS
    )
    out.backward(dy.double())
    batch = whole.detach()
    expected = {
        "y": out.detach(),
        "dx": whole.grad,
        "dgamma": whole_gamma.grad,
        "dbeta": whole_beta.grad,
        "mean": (1 - MOMENTUM) * batch.mean((0, 2)),
        "var": MOMENTUM + (1 - MOMENTUM) * batch.var((0, 2), unbiased=False),
    }
    actual = {name: torch.cat([own[name] for own in kept]) for name in ("y", "dx")}
    actual.update({name: sum(own[name] for own in kept) for name in ("dgamma", "dbeta")})
    actual.update({name: kept[-1][name] for name in ("mean", "var")})
    for own in kept:
        for name in ("mean", "var"):
            assert torch.equal(own[name], kept[0][name]), "running statistics differ"
    return max(relative_error(actual[name], expected[name]) for name in expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="build/gpu/libgpu_step.so")
    options = parser.parse_args()
    import torch

    library = ctypes.CDLL(options.library)
    library.gpu_step.restype = ctypes.c_char_p
    library.gpu_step.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(Context),
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_double,
        ctypes.c_double,
    ]
    failed = False
    print("| dtype | contexts | shape | mean | greatest relative error |")
    print("| --- | --- | --- | --- | --- |")
    for dtype in ELEMENTS:
        for shape in SHAPES:
            for number in (1, 2, 4, 8):
                for mean in (0.0, 1e3 if dtype != "float16" else 10.0):
                    error = step(torch, library, number, shape, dtype, mean)
                    failed |= not error <= TOLERANCE[dtype]
                    print(f"| {dtype} | {number} | {shape} | {mean:g} | {error:.2g} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
