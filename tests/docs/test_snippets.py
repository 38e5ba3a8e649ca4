"""Every snippet of the pages runs; every command, link and source that they name exists.

A Python snippet that imports gluon_syncbn runs alone, any other after the first one of its page.
Commands are checked word by word, not run: what they do has tests of its own.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import gluon_syncbn.__main__ as command_line
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.distributed.launch import why_not
from tests.support.processes import ROOT, run_python

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
]


def snippets(page: Path, language: str) -> list[tuple[int, str]]:
    """(number of the first line, text) of the page's fenced code blocks in `language`."""
    tokens = MarkdownIt().parse(page.read_text())
    fences = [token for token in tokens if token.type == "fence"]
    assert all(token.info.strip() for token in fences), f"{page.name}: a fence names no language"
    return [(t.map[0] + 2, t.content) for t in fences if t.info.split()[0] == language]


def programs_of(page: Path) -> list[str]:
    """The Python snippets of a page, each line at its number there, for the tracebacks."""
    start, programs = "", []
    for line, text in snippets(page, "python"):
        before = "" if "import gluon_syncbn\n" in text else start
        if before in programs:
            programs.remove(before)  # which this one begins with
        programs.append(before + "\n" * (line - 1 - before.count("\n")) + text)
        start = start or programs[0]
    return programs


def commands() -> list[str]:
    """The lines of all shell snippets."""
    return [
        line
        for page in PAGES
        for _, text in snippets(page, "bash")
        for line in text.replace("\\\n", " ").splitlines()
        if shlex.split(line, comments=True)
    ]


def inline(page: Path) -> list[Token]:
    """What the paragraphs and tables of the page consist of."""
    tokens = MarkdownIt().enable("table").parse(page.read_text())
    return [child for token in tokens for child in token.children or ()]


def links(page: Path) -> list[str]:
    """Where links and pictures lead, but for those to other sites."""
    found = [str(t.attrs.get("href") or t.attrs.get("src") or "") for t in inline(page)]
    return [link for link in found if link and "://" not in link]


def sources(page: Path) -> list[str]:
    """Files and folders of the repository that the text names."""
    name = re.compile(r"(src|tests|scripts|gluon_syncbn|cmake)/[\w./-]+|docs/[\w./-]+\.md")
    codes = [token.content for token in inline(page) if token.type == "code_inline"]
    return [code for code in codes if name.fullmatch(code)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links(page):
    """On the site, where scripts/docs.sh checks links and anchors, pages lie in other folders."""
    for link in links(page):
        assert (page.parent / link.partition("#")[0]).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_sources(page):
    for name in sources(page):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_sources_that_sources_name():
    # Comments cite sources of MXNet as mxnet/src/...
    name = re.compile(r"(?<!mxnet/)\b(?:src|tests|scripts|gluon_syncbn|cmake)/[\w./-]+\.[a-z]+\b")
    for folder in ("src", "gluon_syncbn", "scripts", "cmake"):
        for file in (ROOT / folder).rglob("*.*"):
            if file.suffix in (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake"):
                for found in name.findall(file.read_text()):
                    assert (ROOT / found).exists(), f"{file} names {found}"


# One process for all programs of a page, each with names of its own: imports take seconds.
RUNNER = """
import json, os, sys
os.chdir(sys.argv[2])
for program in json.load(sys.stdin):
    exec(compile(program, sys.argv[1], "exec"), {"__name__": "__main__"})
"""


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p, "python")], ids=lambda p: p.name)
def test_python(page, tmp_path):
    programs = programs_of(page)
    if any("import horovod" in program for program in programs) and (reason := why_not()):
        pytest.skip(reason)
    run_python(RUNNER, page.name, str(tmp_path), stdin=json.dumps(programs))


NO_PROGRAMS = """\
```python
x = 0
```

- item

  ```python
  y = 1 / x
  ```

```python
y
```

```python
import gluon_syncbn

x
```
"""


def test_snippets_that_fail_are_found_at_their_lines(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(NO_PROGRAMS)
    found = []
    for program in programs_of(page):
        with pytest.raises((ZeroDivisionError, NameError)) as raised:
            exec(program, {})
        found.append((raised.type, raised.traceback[-1].lineno + 1))
    assert found == [(ZeroDivisionError, 8), (NameError, 12), (NameError, 18)]


@pytest.mark.parametrize("command", commands())
def test_command(command, monkeypatch, capsys):
    words = shlex.split(command, comments=True)
    while re.match(r"\w+=", words[0]):
        words.pop(0)
    words[0] = Path(words[0]).name
    if words[:3] == ["python", "-m", "gluon_syncbn"]:
        check_own(words[3:], monkeypatch)
    elif words[0] == "gluon-syncbn":
        check_own(words[1:], monkeypatch)
    elif words[:2] == ["pip", "install"]:
        check_install(words[2:])
    elif words[0] in ("python", "bash") and words[1].startswith(("scripts/", "examples/")):
        check_script(words[0], words[1], words[2:])
    else:
        pytest.fail(f"no test knows this command: {command}")


def check_own(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser takes it; what comes after the parser is left out."""
    monkeypatch.setattr(command_line, "_export", lambda options: 0)
    monkeypatch.setattr(command_line.report, "main", lambda: 0)
    assert command_line.main(arguments) == 0


def check_install(arguments: list[str]) -> None:
    extras = metadata("gluon_syncbn").get_all("Provides-Extra")
    for argument in arguments:
        name, _, wanted = argument.partition("[")
        assert name in (".", "gluon_syncbn", "$(echo dist/*.whl)")
        assert not wanted or {e.strip() for e in wanted.rstrip("]").split(",")} <= {*extras}


def check_script(interpreter: str, script: str, arguments: list[str]) -> None:
    assert (ROOT / script).is_file()
    for word in arguments:
        assert not word.startswith("tests/") or (ROOT / word.partition("::")[0]).exists(), word
    options = {word.split("=")[0] for word in arguments if word.startswith("--")}
    if script == "scripts/demo.sh":  # passes them on
        interpreter, script = "python", "scripts/demo.py"
    if options - {"--help"}:
        known = set(re.findall(r"--[a-z][a-z0-9-]*", help_of(interpreter, script)))
        assert options <= known, f"{script} does not know {options - known}"


@functools.lru_cache(maxsize=None)
def help_of(interpreter: str, script: str) -> str:
    command = [sys.executable if interpreter == "python" else interpreter, script, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_wrong_links_and_sources_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("| see |\n| --- |\n| [here](none.md#title), `src/none.cc` |\n")
    with pytest.raises(AssertionError, match=r"names src/none\.cc"):
        test_sources(page)
    with pytest.raises(AssertionError, match=r"links to none\.md#title"):
        test_links(page)


def test_wrong_commands_are_found(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        check_own(["export", "a", "b", "c", "--flod"], monkeypatch)
    with pytest.raises(SystemExit):
        check_own(["diagnoze"], monkeypatch)
    with pytest.raises(AssertionError):
        check_install([".[cpu,gluoncvx]"])
    check_script("bash", "scripts/test.sh", ["--python-only"])
    with pytest.raises(AssertionError, match=r"does not know \{'--phyton-only'\}"):
        check_script("bash", "scripts/test.sh", ["--phyton-only"])
    with pytest.raises(AssertionError):
        check_script("bash", "scripts/damo.sh", [])
    with pytest.raises(AssertionError, match="no_such_test"):
        check_script("bash", "scripts/test.sh", ["--python-only", "tests/no_such_test.py"])
