"""The table in docs/gluoncv.md: written from, and compared with, what the tests found."""

from __future__ import annotations

from tests.support.gluoncv_networks import WAYS, Network
from tests.support.processes import ROOT

PATH = ROOT / "docs" / "gluoncv.md"
BEGIN = "<!-- table: written by pytest --all-networks --write-gluoncv-table -->"
END = "<!-- end of table -->"

HYBRIDIZED = "hybridized"

HEADER = ["| family | backbone | aux | norm_layer | convert | freeze_bn |", "| --- " * 6 + "|"]


def table(networks: list[Network], outcomes: dict[tuple[str, str], str]) -> str:
    """Markdown: one row for each network, and notes.

    Parameters
    ----------
    networks : list of Network
    outcomes : dict
        For every (name of network, way): `HYBRIDIZED`, or why GluonCV does not offer it.
    """
    notes: list[str] = []
    lines = list(HEADER)
    for network in networks:
        cells = []
        for way in WAYS:
            outcome = outcomes[network.name, way]
            if outcome != HYBRIDIZED:
                if outcome not in notes:
                    notes.append(outcome)
                outcome = f"no ({notes.index(outcome) + 1})"
            cells.append(outcome)
        row = (network.family, network.backbone, network.aux, *cells)
        lines.append(f"| {' | '.join(row)} |")
    lines += [""] + [f"{number}. {note}." for number, note in enumerate(notes, 1)]
    return "\n".join(lines)


def read() -> str:
    """The table in the file."""
    return PATH.read_text().split(BEGIN)[1].split(END)[0].strip()


def write(text: str) -> None:
    """Put a table into the file."""
    before, rest = PATH.read_text().split(BEGIN)
    PATH.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")
