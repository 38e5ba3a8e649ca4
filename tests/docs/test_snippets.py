"""Every snippet of the pages runs; every command, link and source that they name exists.

A Python snippet that imports gluon_syncbn runs alone, any other after the first one of its page.
Commands are checked word by word, not run: what they do has tests of its own.
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from itertools import dropwhile
from pathlib import Path

import gluon_syncbn.__main__ as command_line
import pytest

from tests.distributed.launch import why_not
from tests.support.pages import PAGES, links, snippets
from tests.support.processes import ROOT, run_python

# A file or folder of the repository.
NAME = r"(?:src|tests|scripts|gluon_syncbn|cmake)/[\w./-]+"


def test_links():
    """On the site, where scripts/docs.sh checks links and anchors, pages lie in other folders."""
    assert sum(len(links(page)) for page in PAGES) > 50
    for page in PAGES:
        for link in links(page):
            assert (page.parent / link.partition("#")[0]).exists(), f"{page} links to {link}"


def test_sources():
    named = {page: re.findall(rf"`({NAME}|docs/[\w./-]+\.md)`", page.read_text()) for page in PAGES}
    for folder in ("src", "gluon_syncbn", "scripts", "cmake"):
        for file in (ROOT / folder).rglob("*.*"):
            if file.suffix in (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake"):
                # Comments cite sources of MXNet as mxnet/src/...
                named[file] = re.findall(rf"(?<!mxnet/)\b{NAME}\.[a-z]+\b", file.read_text())
    assert sum(map(len, named.values())) > 100
    for file, names in named.items():
        for name in names:
            assert (ROOT / name).exists(), f"{file} names {name}"


# One process for all snippets of a page, each with names of its own: imports take seconds.
RUNNER = """
import os, sys
page, folder, *snippets = sys.argv[1:]
os.chdir(folder)
for snippet in snippets:
    names = {"__name__": "__main__"}
    for text in [snippet] if "import gluon_syncbn" in snippet else [snippets[0], snippet]:
        exec(compile(text, page, "exec"), names)
"""


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p, "python")], ids=lambda p: p.name)
def test_python(page, tmp_path):
    programs = snippets(page, "python")
    if any("import horovod" in program for program in programs) and (reason := why_not()):
        pytest.skip(reason)
    run_python(RUNNER, str(page), str(tmp_path), *programs)


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ("y", ""),
        ("y / x", "ZeroDivisionError"),
        ("z", "NameError"),
        ("y  # import gluon_syncbn", "NameError"),
    ],
)
def test_snippets_that_fail_are_found_at_their_lines(last, error, tmp_path):
    page = tmp_path / "page.md"
    blocks = ["x, y = 0, 1", "z = 2", last]
    page.write_text("\n".join(f"- item\n\n  ```python\n  {block}\n  ```\n" for block in blocks))
    said = run_python(RUNNER, str(page), str(tmp_path), *snippets(page, "python"), status=None)
    assert (f'{page}", line 16' in said.stderr) == bool(error)
    assert error in said.stderr


COMMANDS = [
    line
    for page in PAGES
    for text in snippets(page, "bash")
    for line in text.replace("\\\n", " ").splitlines()
    if shlex.split(line, comments=True)
]


assert len(COMMANDS) > 20


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, monkeypatch, capsys):
    words = list(dropwhile(re.compile(r"\w+=").match, shlex.split(command, comments=True)))
    words[0] = Path(words[0]).name
    if words[0] == "gluon-syncbn":
        # The parser takes it; what comes after the parser is left out.
        monkeypatch.setattr(command_line, "_export", lambda options: 0)
        monkeypatch.setattr(command_line.report, "main", lambda: 0)
        assert command_line.main(words[1:]) == 0
    elif words[:2] == ["pip", "install"]:
        extras = metadata("gluon_syncbn").get_all("Provides-Extra")
        for argument in words[2:]:
            name, _, wanted = argument.rstrip("]").partition("[")
            assert name in (".", "gluon_syncbn", "$(echo dist/*.whl)")
            assert not wanted or {extra.strip() for extra in wanted.split(",")} <= {*extras}
    else:
        interpreter, script, *arguments = words
        paths = [word.partition("::")[0] for word in arguments if word.startswith("tests/")]
        assert all((ROOT / path).exists() for path in [script, *paths])
        options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        assert options <= {"--help"} or options <= options_of(interpreter, script)


@functools.lru_cache(maxsize=None)
def options_of(interpreter: str, script: str) -> set[str]:
    command = [{"python": sys.executable, "bash": "bash"}[interpreter], script, "--help"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z0-9-]*", said))
