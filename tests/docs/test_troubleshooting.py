"""docs/troubleshooting.md has every message, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gluon_syncbn.arguments import ARGUMENTS

from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
# Messages of the library itself and of the layer; tools beside them explain themselves.
MODULES = (
    "__init__",
    "arguments",
    "block",
    "cpu_contexts",
    "diagnose/report",
    "gpu_contexts",
    "library",
    "mxnet_versions",
    "nvidia_libraries",
    "processes/horovod",
    "registration",
    "run/at_start/sitecustomize",
    "run/operators",
    "run/summary",
    "standstill",
    "timeout",
)


def words_of(text: str) -> str:
    """The longest run of a message's own words, by which it is found."""
    pieces = re.split(r"\.\.\.", text)
    return max((piece.strip(" '\"=:;,.()") for piece in pieces), key=len)


def listed() -> list[str]:
    """The messages of the page's tables."""
    cells = re.findall(r"^\| `(.+?)` \|", PAGE, flags=re.MULTILINE)
    assert len(cells) > 40
    return cells


def normalized(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def cpp_strings() -> str:
    """All string literals of the native sources, adjacent ones joined, values as `...`."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.[ch]*")):
        source = re.sub(r"//.*", "", path.read_text())
        # Internal errors need no explanation of their own.
        source = re.sub(r"GLUON_SYNCBN_ENFORCE\([^;]*;", "", source)
        source = re.sub(r'\basm\("[^"]*"', "", source)
        # "a" + value + "b" and "a" << value << "b" read as: a ... b
        source = re.sub(r'"\s*\n?\s*"', "", source)
        source = re.sub(r'"\s*(?:\+|<<)[^";{}]*?(?:\+|<<)\s*"', "...", source)
        found += re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)
    return "\n".join(found)


def python_messages() -> Iterator[str]:
    """What the package raises, warns of, or returns as a problem."""
    yield from (f"{name}=... should be {expected}" for name, (expected, _) in ARGUMENTS.items())
    paths = [ROOT / "gluon_syncbn" / f"{module}.py" for module in MODULES]
    for path in paths:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield text_of(node.exc.args[0])
            elif isinstance(node, ast.Call) and (
                getattr(node.func, "attr", "") == "warn" or getattr(node.func, "id", "") == "_say"
            ):
                yield text_of(node.args[0])
            elif isinstance(node, (ast.Return, ast.Assign)) and isinstance(
                node.value, (ast.Constant, ast.JoinedStr)
            ):
                text = text_of(node.value)
                if text.count(" ") > 3 and text[0] != "{":
                    yield text


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "..."


def cpp_messages() -> Iterator[str]:
    """Literals of the native sources that are words, not names."""
    for text in cpp_strings().splitlines():
        for piece in text.replace("\\n", "").split("..."):
            if piece.count(" ") >= 4:
                yield piece.strip(" '\"=:;,.()")


# Continuations of messages whose beginning is on the page.
CONTINUED = (
    "All causes",
    "Usual causes",
    "a finite number, 0 or greater",
    "a number from 0 to 1",
    "a whole number from 1 to",
    "the number of a process set of Horovod",
    "as well. That number should be the number of devices in use",
    "the loop waits for one device",
    "known are",
)


def test_every_message_of_the_package_is_on_the_page():
    page = normalized(PAGE)
    messages = [normalized(message) for message in python_messages()]
    assert len(messages) >= 12
    for message in messages:
        sentence = words_of(re.split(r"\. |; |, ", re.sub(r"^\.\.\.: ", "", message))[0])
        assert sentence in page, f"not on the page: {message}"


def test_every_message_of_the_library_is_on_the_page():
    page = normalized(PAGE)
    messages = [normalized(message) for message in cpp_messages()]
    assert len(messages) >= 20
    for message in messages:
        if message.startswith(CONTINUED):
            continue
        start = re.split(r"\. |; |, ", message)[0]
        assert start in page, f"not on the page: {message}"


def test_every_message_on_the_page_exists():
    sources = normalized(cpp_strings() + "\n" + "\n".join(python_messages()))
    for message in listed():
        words = words_of(re.split(r"\. |; ", message)[0])
        assert words in sources, f"no source has {words!r}"
