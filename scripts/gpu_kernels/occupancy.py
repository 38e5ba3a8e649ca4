"""How many warps of a kernel a multiprocessor can hold."""

from __future__ import annotations

from typing import NamedTuple

WARP = 32
REGISTERS = 64 * 1024  # of a multiprocessor, 32 bits each: of every architecture from sm_60 on
REGISTER_UNIT = 256  # that a warp gets
WARP_UNIT = 4  # warps are given to four schedulers evenly


class Limits(NamedTuple):
    """Of a multiprocessor: resident warps and blocks, and bytes of shared memory."""

    warps: int
    blocks: int
    shared: int

    def reserved(self, architecture: int) -> int:
        """Return what the system takes of a block's shared memory, where cuobjdump leaves it out.

        From sm_90 on the size that it gives has this in it.
        """
        return 1024 if 80 <= architecture < 90 else 0


# NVIDIA, "CUDA C++ Programming Guide", section "Compute Capabilities", table "Technical
# Specifications per Compute Capability" (those before 7.5 in its editions for CUDA 12).
LIMITS = {
    60: Limits(64, 32, 64 << 10),
    61: Limits(64, 32, 96 << 10),
    70: Limits(64, 32, 96 << 10),
    75: Limits(32, 16, 64 << 10),
    80: Limits(64, 32, 164 << 10),
    86: Limits(48, 16, 100 << 10),
    87: Limits(48, 16, 164 << 10),
    89: Limits(48, 24, 100 << 10),
    90: Limits(64, 32, 228 << 10),
    100: Limits(64, 32, 228 << 10),
    103: Limits(64, 32, 228 << 10),
    120: Limits(48, 24, 100 << 10),
    121: Limits(48, 24, 100 << 10),
}


def occupancy(architecture: int, registers: int, shared: int, threads: int) -> float | None:
    """Resident warps relative to the most that a multiprocessor can have.

    Parameters
    ----------
    architecture : int
        As in ``sm_80``.
    registers : int
        Of a thread.
    shared : int
        Bytes of a block.
    threads : int
        Of a block.

    Returns
    -------
    float or None
        None for an architecture that is not in `LIMITS`.
    """
    if architecture not in LIMITS:
        return None
    limits = LIMITS[architecture]
    warps_of_block = -(-threads // WARP)
    registers_of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    warps = REGISTERS // registers_of_warp // WARP_UNIT * WARP_UNIT
    unit = 128 if architecture >= 80 else 256
    shared_of_block = -(-(shared + limits.reserved(architecture)) // unit) * unit
    blocks = min(
        limits.blocks,
        limits.warps // warps_of_block,
        warps // warps_of_block,
        limits.shared // shared_of_block if shared_of_block else limits.blocks,
    )
    return blocks * warps_of_block / limits.warps
