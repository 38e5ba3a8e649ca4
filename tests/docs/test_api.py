"""docs/api.md has every public name, and no page shows a call that the package refuses."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import gluon_syncbn
import pytest

from tests.docs.test_snippets import PAGES, inline
from tests.support.processes import ROOT

ENTRY = re.compile(r"^::: gluon_syncbn\.(\S+)$", flags=re.MULTILINE)
TABLE = re.compile(r"^\| `(gluon_syncbn\.[^`]+\))` \|", flags=re.MULTILINE)


def call_of(code: str) -> ast.Call:
    call = ast.parse(code.replace(", ...", ""), mode="eval").body
    assert isinstance(call, ast.Call)
    return call


def parameters_of(path: str) -> dict[str, inspect.Parameter]:
    """Those of what `path` stands for; the pages' names begin with the package."""
    item: Any = gluon_syncbn if path.startswith("gluon_syncbn.") else gluon_syncbn.SyncBatchNorm
    for name in path.split(".")[1:]:
        item = getattr(item, name)
    return dict(inspect.signature(item).parameters)


def calls(page: Path) -> list[str]:
    """Inline code that calls something of gluon_syncbn, with values or `...` as arguments."""
    call = re.compile(r"(gluon_syncbn\.[\w.]+|SyncBatchNorm)\(.*\)")
    codes = [token.content for token in inline(page) if token.type == "code_inline"]
    return [code for code in codes if call.fullmatch(code)]


def test_the_page_has_everything_that_is_exported_once():
    entries = ENTRY.findall((ROOT / "docs" / "api.md").read_text())
    exported = [name for name in gluon_syncbn.__all__ if name != "__version__"]
    assert sorted(name for name in entries if name in exported) == sorted(exported)
    assert len(set(entries)) == len(entries)


def test_the_signatures_of_the_table():
    shown = TABLE.findall((ROOT / "docs" / "api.md").read_text())
    assert len(shown) > 8
    for signature in shown:
        call = call_of(signature)
        known = parameters_of(signature.partition("(")[0])
        names = [arg.id for arg in call.args if isinstance(arg, ast.Name)]
        names += [keyword.arg or "" for keyword in call.keywords]
        assert names == [name for name in known if name in names], signature
        assert ", ..." in signature or names == [*known], signature
        for keyword in call.keywords:
            assert known[keyword.arg or ""].default == ast.literal_eval(keyword.value), signature


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_calls_in_the_text(page):
    for code in calls(page):
        path, _, _ = code.partition("(")
        if "Trainer" in path:  # whose module needs Horovod
            continue
        keywords = {keyword.arg for keyword in call_of(code).keywords}
        assert keywords <= {*parameters_of(path)}, f"{page.name}: {code}"


def test_differences_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Call `gluon_syncbn.export(net, path, folded=True)`.\n")
    with pytest.raises(AssertionError, match="folded"):
        test_calls_in_the_text(page)
