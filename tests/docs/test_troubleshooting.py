"""The messages in docs/troubleshooting.md exist."""

from __future__ import annotations

import re

from gluon_syncbn.arguments import ARGUMENTS

from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
# Of pip, argparse and Python.
OF_OTHERS = (
    "No matching distribution found for setuptools",
    "OSError: libcudart.so.11.0",
    "unrecognized arguments",
    "module 'gluon_syncbn' has no attribute",
)


def sources() -> str:
    """All sources, without C++ comments, and with adjacent string literals joined."""
    files = [ROOT / "setup.py", *(ROOT / "gluon_syncbn").rglob("*.py")]
    text = "\n".join(file.read_text() for file in files)
    for file in (ROOT / "src").rglob("*.[ch]*"):
        text += re.sub(r"//.*", "", file.read_text())
    text += "".join(f"should be {expected}" for expected, _ in ARGUMENTS.values())
    return re.sub(r"\s+", " ", re.sub(r'(?<!\\)"\s*f?"', "", text).replace('\\"', '"'))


def test_every_message_on_the_page_exists():
    ours = re.sub(r"^## Messages of MXNet\n.*?^## ", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^\| `(.+?)` \|", ours, flags=re.MULTILINE)
    assert len(listed) > 30
    text = sources()
    for message in listed:
        # The longest run of its own words stands for the message.
        pieces = re.split(r"\. |; ", message)[0].split("...")
        words = max((piece.strip(" '\"=:;,.()") for piece in pieces), key=len)
        assert words in text or message.startswith(OF_OTHERS), f"no source has {words!r}"
