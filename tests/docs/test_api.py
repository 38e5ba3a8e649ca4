"""docs/api.md has every public name, and no page shows a call that the package refuses."""

from __future__ import annotations

import ast
import inspect
import re
from functools import reduce
from typing import Any

import gluon_syncbn

from tests.support.pages import PAGES
from tests.support.processes import ROOT

API = (ROOT / "docs" / "api.md").read_text()
# Values or `...` are its arguments.
CALL = re.compile(r"`((?:gluon_syncbn\.[\w.]+|SyncBatchNorm)\([^`]*\))`")


def parameters_of(call: str) -> list[inspect.Parameter]:
    """Those of the called function; the names of pages begin with the package or the class."""
    path = call.partition("(")[0].replace("gluon_syncbn.", "").split(".")
    item: Any = reduce(getattr, path, gluon_syncbn)
    return [*inspect.signature(item).parameters.values()]


def test_the_page_has_everything_that_is_exported_once():
    entries = re.findall(r"^::: gluon_syncbn\.(\S+)$", API, flags=re.MULTILINE)
    exported = [name for name in gluon_syncbn.__all__ if name != "__version__"]
    assert sorted(name for name in entries if name in exported) == sorted(exported)
    assert len(set(entries)) == len(entries)


def test_the_signatures_of_the_table():
    shown = re.findall(r"^\| `(gluon_syncbn\.[^`]+\))` \|", API, flags=re.MULTILINE)
    assert len(shown) > 8
    for call in shown:
        arguments = [text for text in call.partition("(")[2][:-1].split(", ") if text]
        known = parameters_of(call)
        assert "..." in arguments or len(arguments) == len(known), call
        for text, parameter in zip(arguments, known):
            whole = str(parameter.replace(annotation=parameter.empty))
            assert text in ("...", parameter.name, whole), call


def test_calls_in_the_text():
    calls = [call for page in PAGES for call in CALL.findall(page.read_text())]
    assert len(calls) > 30
    for call in calls:
        if "Trainer" not in call:  # whose module needs Horovod
            code = ast.parse(call.replace(", ...", ""), mode="eval").body
            assert isinstance(code, ast.Call)
            keywords = {keyword.arg for keyword in code.keywords}
            assert keywords <= {parameter.name for parameter in parameters_of(call)}, call
