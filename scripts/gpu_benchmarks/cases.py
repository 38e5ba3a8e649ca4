"""What scripts/benchmark_gpu.py times, and the least traffic that it needs."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
LARGE = 16 * MIB  # bytes of data from which bandwidth is to be reached
SMALL = MIB  # below which launches take the time
BYTES = {"float32": 4, "float64": 8, "float16": 2}
CONTEXTS = (1, 2, 4, 8)

# Passes over memory of the size of the data that each phase needs at least: reads and writes.
PASSES = {"moments": 1, "normalize": 2, "gradient_sums": 2, "input_gradient": 3}
FORWARD = ("moments", "normalize")
BACKWARD = ("gradient_sums", "input_gradient")
COPY_PASSES = 2

# Activations (batch, channels, side) of ResNet-50 and -101 in PSPNet, DeepLabV3 and FCN: strides
# 1/4 and 1/8 of crops of 473 (119 and 60) and 713 (179 and 90).
NETWORK_SHAPES = (
    (16, 64, 119),
    (4, 256, 119),
    (2, 64, 179),
    (8, 256, 179),
    (16, 256, 60),
    (8, 512, 60),
    (16, 512, 90),
    (1, 1024, 90),
    (2, 2048, 60),
    (16, 2048, 60),
)
# What the pyramids of PSPNet and DeepLabV3 add: pooled maps of a few bins.
SMALL_SHAPES = ((8, 512, 1), (8, 512, 3), (8, 64, 6))
SHARED_SHAPES = ((16, 256, 60), (16, 64, 119), (8, 512, 60))  # those that contexts share
QUICK_SHAPES = ((8, 64, 30), (8, 16, 3))


@dataclass(frozen=True)
class Case:
    """What is timed in a row of the table.

    Attributes
    ----------
    batch, channels, side : int
        The data of all contexts together has shape (batch, channels, side, side).
    dtype : {'float32', 'float16'}
        Type of the data.
    channel_last : bool
        Whether the channels are neighbours in memory.
    contexts : int
        Devices, as streams of one GPU, that share the batch evenly.
    """

    batch: int
    channels: int
    side: int
    dtype: str = "float32"
    channel_last: bool = False
    contexts: int = 1

    @property
    def bytes(self) -> int:
        """Of the data of all contexts."""
        return self.batch * self.channels * self.side**2 * BYTES[self.dtype]

    @property
    def title(self) -> str:
        """Of the row."""
        layout = "last" if self.channel_last else "first"
        shape = f"({self.batch}, {self.channels}, {self.side}, {self.side})"
        return f"{self.contexts} ctx, {shape}, {self.dtype}, channel-{layout}"

    @property
    def size(self) -> str:
        """The class of sizes that goals are given for."""
        if self.bytes >= LARGE:
            return "large"
        return "small" if self.bytes < SMALL else "medium"

    def layout(self) -> tuple[int, int, int]:
        """Elements before the channel axis of all contexts, on it, and behind it."""
        pixels = self.side**2
        if self.channel_last:
            return self.batch * pixels, self.channels, 1
        return self.batch, self.channels, pixels


def all_cases(quick: bool) -> list[Case]:
    """List the cases, those of one context first."""
    shapes = QUICK_SHAPES if quick else (*NETWORK_SHAPES, *SMALL_SHAPES)
    shared = QUICK_SHAPES if quick else (*SHARED_SHAPES, *SMALL_SHAPES)
    numbers = (2, 8) if quick else CONTEXTS[1:]
    kinds = [(dtype, last) for dtype in ("float32", "float16") for last in (False, True)]
    cases = [Case(*shape, dtype, last) for shape in shapes for dtype, last in kinds]
    cases += [
        Case(*shape, dtype, last, number)
        for number in numbers
        for shape in shared
        for dtype, last in kinds
    ]
    return cases


def bandwidth(case: Case, copy_seconds: float) -> float:
    """Bytes a second that copying the data moves: each is read and written."""
    return COPY_PASSES * case.bytes / copy_seconds


def floor_seconds(case: Case, phases: tuple[str, ...], copy_seconds: float) -> float:
    """Return the time that the least traffic of phases takes at the bandwidth of a copy."""
    traffic = sum(PASSES[phase] for phase in phases) * case.bytes
    return traffic / bandwidth(case, copy_seconds)


def slots(case: Case, cache_bytes: int) -> int:
    """Count arrays to take in turns, so that data of 1 MiB and more is not in the cache still.

    What is smaller takes the time of launches, wherever it lies.
    """
    wanted = -(-2 * cache_bytes // max(case.bytes, SMALL))
    return max(2, wanted)
