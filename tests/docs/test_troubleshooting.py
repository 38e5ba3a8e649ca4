"""The messages in docs/troubleshooting.md exist."""

from __future__ import annotations

import ast
import re
from typing import Iterator

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


def listed() -> list[str]:
    """The messages of the page's tables, without those of MXNet."""
    ours = re.sub(r"^## Messages of MXNet\n.*?^## ", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^\| `(.+?)` \|", ours, flags=re.MULTILINE)
    return [message for message in found if not message.startswith(OF_OTHERS)]


def words_of(text: str) -> str:
    """The longest run of a message's own words, by which it is found."""
    return max((piece.strip(" '\"=:;,.()") for piece in text.split("...")), key=len)


def cpp_strings() -> str:
    """All string literals of the native sources, adjacent ones joined, values as `...`."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.[ch]*")):
        source = re.sub(r"//.*", "", path.read_text())
        # "a" + value + "b" and "a" << value << "b" read as: a ... b
        source = re.sub(r'"\s*\n?\s*"', "", source)
        source = re.sub(r'"\s*(?:\+|<<)[^";{}]*?(?:\+|<<)\s*"', "...", source)
        found += re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)
    return "\n".join(found)


def python_strings() -> Iterator[str]:
    yield from (f"{name}=... should be {expected}" for name, (expected, _) in ARGUMENTS.items())
    for path in [ROOT / "setup.py", *(ROOT / "gluon_syncbn").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Constant, ast.JoinedStr)):
                yield text_of(node)


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "..."


def test_every_message_on_the_page_exists():
    sources = re.sub(r"\s+", " ", "\n".join([cpp_strings(), *python_strings()]))
    assert len(listed()) > 30
    for message in listed():
        words = words_of(re.split(r"\. |; ", message)[0])
        assert words in sources, f"no source has {words!r}"
