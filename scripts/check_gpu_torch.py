"""Compares steps on 1 to 8 GPU contexts with torch.nn.functional.batch_norm on the whole batch.

Needs a GPU and PyTorch with CUDA, no MXNet. scripts/check_gpu.sh builds the library that it takes.
Without a GPU it checks the library built with emulated ones, slowly: --device cpu.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.exact import relative_error
from gpu_benchmarks.bridge import ARRAYS, ELEMENTS, EPS, MOMENTUM, Bridge, BridgeError, Part, Round
from gpu_benchmarks.torch_device import UnavailableError, import_torch

TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 4e-3}
# Batch, channels, inner; those with inner = 1 are channel-last.
SHAPES = ((8, 3, 1), (16, 65, 49), (8, 256, 3600), (9, 64, 14161), (14400, 65, 1), (8192, 256, 1))
QUICK_SHAPES = ((9, 3, 1), (16, 65, 49), (1440, 65, 1))


class Case(NamedTuple):
    """Data of one step."""

    dtype: str
    shape: tuple[int, int, int]
    contexts: int
    mean: float


def step(torch: Any, device: str, bridge: Bridge, case: Case) -> float:
    """Greatest relative error of all results of one step."""
    outer, channels, inner = case.shape
    number = case.contexts
    kind = getattr(torch, case.dtype)
    parameter = torch.float32 if case.dtype == "float16" else kind
    torch.manual_seed(0)
    x = (torch.randn(case.shape, device=device) + case.mean).to(kind)
    dy = torch.randn(case.shape, device=device).to(kind)
    gamma = torch.rand(channels, device=device).to(parameter) + 0.5
    beta = torch.randn(channels, device=device).to(parameter)

    # Sizes that differ, where there are enough samples.
    cuts = [outer * i * (i + 1) // (number * (number + 1)) for i in range(number + 1)]
    kept, parts = [], []
    for i in range(number):
        own = {"x": x[cuts[i] : cuts[i + 1]].clone(), "dy": dy[cuts[i] : cuts[i + 1]].clone()}
        own.update(y=torch.empty_like(own["x"]), dx=torch.empty_like(own["x"]))
        own.update(gamma=gamma.clone(), beta=beta.clone())
        own.update(mean=torch.zeros_like(gamma), var=torch.ones_like(gamma))
        own.update(dgamma=torch.empty_like(gamma), dbeta=torch.empty_like(gamma))
        kept.append(own)
        parts.append(Part(cuts[i + 1] - cuts[i], {name: own[name].data_ptr() for name in ARRAYS}))
    if device != "cpu":
        torch.cuda.synchronize()  # the library's streams do not wait for that of PyTorch
    with Round(bridge, parts, case.dtype, channels, inner) as one:
        one.forward()
        one.backward()
        bridge.finish(number)

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
            if not torch.equal(own[name], kept[0][name]):
                raise BridgeError(f"{case}: contexts have different running statistics")
    errors = [relative_error(actual[name].double(), expected[name]) for name in expected]
    return float(torch.tensor(errors).max())  # NaN, if one is


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", type=Path, help="build/gpu/libgpu_bridge.so")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small and few cases")
    options = parser.parse_args(arguments)
    shapes = QUICK_SHAPES if options.quick else SHAPES
    failed = False
    try:
        torch = import_torch(needs_gpu=options.device == "cuda")
        bridge = Bridge(options.library)
        print("| dtype | contexts | shape | mean | greatest relative error |")
        print("| --- | --- | --- | --- | --- |")
        for dtype in ELEMENTS:
            means = (0.0, 1e3 if dtype != "float16" else 10.0)
            for case in (Case(dtype, s, n, m) for s in shapes for n in (1, 2, 4, 8) for m in means):
                error = step(torch, options.device, bridge, case)
                failed |= not error <= TOLERANCE[dtype]
                print(f"| {dtype} | {case.contexts} | {case.shape} | {case.mean:g} | {error:.2g} |")
    except (UnavailableError, BridgeError) as error:
        print(f"check_gpu_torch: {error}", file=sys.stderr)
        return 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
