"""docs/api.md is what the docstrings make it, and no page shows a call that the package refuses."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gluon_syncbn
import pytest
from markdown_it import MarkdownIt

import api_page
from tests.support.processes import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README_TABLE = re.compile(r"^\| `(gluon_syncbn\.[^`]+\))` \|", flags=re.MULTILINE)


def call_of(code: str) -> ast.Call:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    return call


def parameters(signature: str) -> tuple[str, list[str]]:
    """The name and the parameters of `f(a, b=1)`, each as text."""
    call = call_of(signature)

    def text(node: ast.expr) -> str:
        return ast.get_source_segment(signature, node) or ""

    named = [f"{k.arg}={text(k.value)}" if k.arg else f"**{text(k.value)}" for k in call.keywords]
    return text(call.func), [text(a) for a in call.args] + named


def calls(page: Path) -> list[str]:
    """Inline code that calls something of gluon_syncbn, with values or `...` as arguments."""
    tokens = MarkdownIt().enable("table").parse(page.read_text())
    codes = [c.content for t in tokens for c in t.children or () if c.type == "code_inline"]
    return [
        code for code in codes if re.fullmatch(r"(gluon_syncbn\.[\w.]+|SyncBatchNorm)\(.*\)", code)
    ]


def test_the_page_is_up_to_date():
    assert api_page.PAGE.read_text() == api_page.page(), "run scripts/api_page.py --write"


def test_the_page_has_everything_that_is_exported():
    names = {signature.partition("(")[0] for signature in api_page.signatures()}
    exported = {f"gluon_syncbn.{name}" for name in gluon_syncbn.__all__ if name != "__version__"}
    assert exported <= names


def found(path: str) -> Callable[..., object]:
    """What `path` stands for; the page's names begin with the package."""
    item: Any = gluon_syncbn if path.startswith("gluon_syncbn.") else gluon_syncbn.SyncBatchNorm
    for name in path.split(".")[1:]:
        item = getattr(item, name)
    return item


def test_the_signatures_are_those_of_the_package():
    for signature in api_page.signatures():
        path, shown = parameters(signature)
        if "Trainer" in path:  # whose module needs Horovod
            continue
        names = [text.partition("=")[0].lstrip("*") for text in shown]
        assert names == [*inspect.signature(found(path)).parameters]


def test_the_readme_agrees_with_the_page():
    shown = README_TABLE.findall((ROOT / "README.md").read_text())
    assert len(shown) > 8
    known = dict(parameters(signature) for signature in api_page.signatures())
    for signature in shown:
        name, some = parameters(signature.replace(", ...", ""))  # there are more
        if ", ..." in signature:
            assert {*some} < {*known[name]}, signature
        else:
            assert some == known[name], signature


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_calls_in_the_text(page):
    for code in calls(page):
        path, _, _ = code.partition("(")
        if "Trainer" in path:
            continue
        keywords = {keyword.arg for keyword in call_of(code.replace(", ...", "")).keywords}
        known = inspect.signature(found(path)).parameters
        assert keywords <= {*known}, f"{page.name}: {code}"


def test_differences_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Call `gluon_syncbn.export(net, path, folded=True)`.\n")
    with pytest.raises(AssertionError, match="folded"):
        test_calls_in_the_text(page)
    assert parameters("f(a, b='x', **kwargs)") == ("f", ["a", "b='x'", "**kwargs"])
