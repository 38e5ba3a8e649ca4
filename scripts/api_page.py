"""Print docs/api.md, which is made from the docstrings of the package; ``--write`` writes it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Iterator
from unittest import mock

import gluon_syncbn.__main__ as command_line
import griffe

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
WIDTH = 108

HEAD = """\
# API

<!-- Made from the docstrings by scripts/api_page.py --write. -->

All names of `gluon_syncbn`, and those of its modules that you may need. [operator.md](operator.md)
describes the operator that the layer calls.
"""

# The public API besides what gluon_syncbn exports: paths from the package on.
SECTIONS = {
    "The layer": ("block.SyncBatchNorm",),
    "Networks": (
        "convert.convert_sync_batchnorm",
        "convert.revert_sync_batchnorm",
        "fuse.fuse",
        "in_sync.check_in_sync",
        "amp.amp_fp32_ops",
    ),
    "Inference without this package": (
        "export.export",
        "export.to_batchnorm",
        "fold.fold_batchnorm",
        "fold.FoldReport",
    ),
    "Waiting": ("_native.set_timeout", "_native.get_timeout"),
    "Several processes": ("horovod.init", "distributed_trainer.DistributedTrainer"),
    "CPU contexts": ("cpu_contexts.use_one_thread_each", "cpu_contexts.allow_several"),
}
COMMANDS = ((), ("diagnose",), ("convert",))

NOT_CALLED_BY_USERS = {"hybrid_forward"}


def load() -> griffe.Module:
    """Read the sources of the package."""
    logging.getLogger("griffe").setLevel(logging.ERROR)  # *args without a type is no mistake
    package = griffe.load("gluon_syncbn", search_paths=[ROOT], docstring_parser=griffe.Parser.numpy)
    assert isinstance(package, griffe.Module)
    return package


def public_name(package: griffe.Module, path: str) -> str:
    """Return the name by which users know what stands at `path`."""
    name = path.rpartition(".")[2]
    exported = package.imports.get(name) == f"gluon_syncbn.{path}"
    return f"gluon_syncbn.{name if exported else path}"


def signature(package: griffe.Module, path: str) -> str:
    """Return the call with all parameters and their defaults, on one line."""
    item: Any = package[path]
    shown = _parameters(item)
    if not shown and item.is_class:  # it has the initializer of its base
        shown = [
            p.name for s in item.docstring.parsed if s.kind.value == "parameters" for p in s.value
        ]
    return f"{public_name(package, path)}({', '.join(shown)})"


def _parameters(function: Any) -> list[str]:
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    shown = []
    for parameter in function.parameters:
        has_default = parameter.default is not None and parameter.kind not in stars
        default = f"={parameter.default}" if has_default else ""
        shown.append(f"{stars.get(parameter.kind, '')}{parameter.name}{default}")
    return [text for text in shown if text != "self"]


def signatures() -> list[str]:
    """Return the signatures of all functions and classes on the page."""
    package = load()
    return [signature(package, path) for paths in SECTIONS.values() for path in paths]


def page() -> str:
    """Return the text of docs/api.md."""
    package = load()
    blocks = [HEAD]
    for title, paths in SECTIONS.items():
        blocks.append(f"## {title}\n")
        for path in paths:
            blocks += _item(package, path)
    blocks.append("## Command line\n")
    for command in COMMANDS:
        blocks.append(f"```text\n{_help(command)}```\n")
    return "\n".join(blocks)


def _item(package: griffe.Module, path: str) -> Iterator[str]:
    item: Any = package[path]
    yield f"### {public_name(package, path)}\n"
    call = signature(package, path)
    lines = textwrap.fill(call, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    yield f"```text\n{lines}\n```\n"
    yield from _docstring(item)
    members = list(_members(item)) if item.is_class else []
    if members:
        yield "**Attributes and methods**\n"
        yield "\n".join(members) + "\n"


def _members(item: Any) -> Iterator[str]:
    for name, member in item.members.items():
        if name.startswith("_") or name in NOT_CALLED_BY_USERS or not member.docstring:
            continue
        text = " ".join(member.docstring.value.split())
        if member.is_function:
            yield _bullet(f"**`{name}({', '.join(_parameters(member))})`**: {text}")
        elif "property" in member.labels:
            yield _bullet(f"**`{name}`**: {text}")


def _docstring(item: Any) -> Iterator[str]:
    for section in item.docstring.parsed:
        kind, value = section.kind.value, section.value
        if kind == "text":
            for paragraph in value.split("\n\n"):
                yield _filled(paragraph) + "\n"
        elif kind in ("parameters", "attributes"):
            yield f"**{kind.capitalize()}**\n"
            yield "\n".join(_named(value)) + "\n"
        elif kind == "returns":
            yield "**Returns**\n"
            for each in value:
                name = (
                    f"**`{each.name}`** ({each.annotation})" if each.name else str(each.annotation)
                )
                yield _bullet(f"{name}: {each.description}" if each.description else name)
            yield ""
        elif kind == "raises":
            yield "**Raises**\n"
            for each in value:
                errors = str(each.annotation).strip("()")
                yield _bullet(f"`{errors.replace(', ', '`, `')}`: {each.description}")
            yield ""
        elif kind == "examples":
            code = "\n".join(line[4:] for _, text in value for line in text.splitlines())
            yield f"```python\n{code}\n```\n"
        elif section.title == "References":
            yield "**References**\n"
            for text in re.split(r"^\.\. ", value.description, flags=re.MULTILINE)[1:]:
                yield _bullet(text)
            yield ""
        elif section.title != "See Also":
            raise ValueError(f"{item.path}: no layout for the section {section.title or kind!r}")


def _named(entries: Any) -> Iterator[str]:
    """List parameters; those that share type and text in one line."""
    together: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        key = (str(entry.annotation or ""), entry.description)
        together.setdefault(key, []).append(f"`{entry.name}`")
    for (annotation, text), names in together.items():
        typed = f" ({annotation})" if annotation and names[0][1] != "*" else ""
        yield _bullet(f"**{', '.join(names)}**{typed}: {text}")


def _bullet(text: str) -> str:
    return _filled(f"- {text}", indent="  ")


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        _markdown(" ".join(text.split())),
        WIDTH,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _markdown(text: str) -> str:
    """Turn the reStructuredText that docstrings use into Markdown."""
    text = re.sub(r":(?:class|func):`gluon_syncbn\.([^`]+)`", _link, text)
    text = re.sub(r"\]_", "]", text)
    return text.replace("``", "`")


def _link(role: re.Match[str]) -> str:
    return f"[`{role[1]}`](#gluon_syncbn{role[1].lower()})"


def _help(command: tuple[str, ...]) -> str:
    """Return what ``python -m gluon_syncbn COMMAND --help`` prints, the same for all Pythons."""
    shown = io.StringIO()
    columns = mock.patch.dict(os.environ, COLUMNS="100")
    with columns, contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        command_line.main([*command, "--help"])
    return shown.getvalue().replace("optional arguments:", "options:")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        print(page(), end="")
