"""What the innermost loops of a kernel do, from its disassembly."""

from __future__ import annotations

import re
from typing import NamedTuple

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
BRANCH = re.compile(r"0x([0-9a-f]+)")
GLOBAL_LOAD, GLOBAL_STORE = ("LDG", "LD"), ("STG", "ST")
LOCAL_ACCESS = ("LDL", "STL")
DOUBLE = re.compile(r"D(ADD|MUL|FMA|SETP|MNMX)\b|F2F\.F64|F2F\.F32\.F64|.2F\.F64|F2.\.\w*\.?F64")


class Loop(NamedTuple):
    """The instructions of a loop that has no loop inside, such as ``LDG.E.128``."""

    operations: tuple[str, ...]

    def count(self, kinds: tuple[str, ...], width: str = "") -> int:
        """Count operations by what is before their first dot; only those with `.width`."""
        return sum(
            each.split(".")[0] in kinds and (not width or width in each.split(".")[1:])
            for each in self.operations
        )

    @property
    def wide_loads(self) -> int:
        """Loads of 16 bytes."""
        return self.count(GLOBAL_LOAD, "128")

    @property
    def wide_stores(self) -> int:
        """Stores of 16 bytes."""
        return self.count(GLOBAL_STORE, "128")

    @property
    def narrow(self) -> int:
        """Accesses to global memory of less than 16 bytes."""
        return self.count(GLOBAL_LOAD + GLOBAL_STORE) - self.wide_loads - self.wide_stores

    @property
    def local(self) -> int:
        """Accesses to local memory."""
        return self.count(LOCAL_ACCESS)

    @property
    def double(self) -> int:
        """Arithmetic in double."""
        return sum(DOUBLE.match(each) is not None for each in self.operations)


def innermost_loops(text: str) -> list[Loop]:
    """Return the loops of a kernel: what lies between the target of a branch backwards and it."""
    instructions = [
        (int(address, 16), operation, operands)
        for address, operation, operands in INSTRUCTION.findall(text)
    ]
    spans = []
    for address, operation, operands in instructions:
        if not operation.startswith("BRA"):
            continue
        target = BRANCH.search(operands)
        # A branch to itself is what follows the end of a kernel.
        if target and int(target.group(1), 16) < address:
            spans.append((int(target.group(1), 16), address))
    inner = [
        (begin, end)
        for begin, end in spans
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in spans)
    ]
    return [
        Loop(tuple(op for address, op, _ in instructions if begin <= address <= end))
        for begin, end in inner
    ]


def main_loop(text: str) -> Loop | None:
    """Return the loop with the most loads of 16 bytes and none of less, if there is one."""
    wide = [loop for loop in innermost_loops(text) if loop.wide_loads and not loop.narrow]
    return max(wide, key=lambda loop: loop.wide_loads) if wide else None
