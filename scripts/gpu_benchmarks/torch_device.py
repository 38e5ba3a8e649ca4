"""A GPU through PyTorch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from gpu_benchmarks.bridge import Bridge


class UnavailableError(RuntimeError):
    """What is needed is not on this machine; says what."""


def import_torch(needs_gpu: bool = True) -> Any:
    """Return the module ``torch``.

    Raises
    ------
    UnavailableError
        If PyTorch cannot be imported or, where one is needed, finds no GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"needs PyTorch, which cannot be imported: {error}") from error
    if needs_gpu and not torch.cuda.is_available():
        raise UnavailableError(
            f"needs a GPU; PyTorch {torch.__version__} (CUDA: {torch.version.cuda}) finds none"
        )
    return torch


class TorchDevice:
    """The first GPU; a `gpu_benchmarks.device.Device`."""

    def __init__(self) -> None:
        self.torch = import_torch()

    def describe(self) -> dict[str, str]:
        torch = self.torch
        query = ["nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=True)
        return {
            "gpu": torch.cuda.get_device_name(0),
            "driver": driver.stdout.strip(),
            "torch": torch.__version__,
            "torch_cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
        }

    def free_bytes(self) -> int:
        self.torch.cuda.empty_cache()
        return int(self.torch.cuda.mem_get_info()[0])

    def normal(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        generator = self.torch.Generator("cuda").manual_seed(seed)
        kind = getattr(self.torch, dtype)
        return self.torch.randn(shape, generator=generator, device="cuda", dtype=kind)

    def full(self, shape: tuple[int, ...], dtype: str, value: float) -> Any:
        return self.torch.full(shape, value, device="cuda", dtype=getattr(self.torch, dtype))

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def double(self, array: Any) -> Any:
        return array.detach().double()

    def copy(self, to: Any, source: Any) -> None:
        to.copy_(source)

    def library_streams(self, bridge: Bridge, contexts: int) -> list[Any]:
        return [self.torch.cuda.ExternalStream(bridge.stream(i)) for i in range(contexts)]

    def seconds(self, work: Callable[[], None], streams: Sequence[Any]) -> float:
        torch = self.torch
        main = torch.cuda.current_stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record(main)
        for stream in streams:
            stream.wait_event(begin)
        work()
        for stream in streams:
            main.wait_stream(stream)
        end.record(main)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def finish(self) -> None:
        self.torch.cuda.synchronize()
