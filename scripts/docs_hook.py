"""Hooks of MkDocs: the version, links on the page of the API, anchors."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path
from typing import Any

VERSION = Path(__file__).parent.parent / "gluon_syncbn" / "_version.py"


def on_config(config: Any) -> Any:
    """Name the version in the header of all pages."""
    version = runpy.run_path(str(VERSION))["__version__"]
    config.site_name = f"{config.site_name} {version}"
    return config


def on_page_content(text: str, page: Any, **_: Any) -> str:
    """Change the HTML of two pages."""
    if page.file.src_uri == "api.md":
        return _with_links(text)
    if page.file.src_uri == "troubleshooting.md":
        return re.sub(r"<tr>(\s*<td>.*?<code>(.*?)</code>)", _with_anchor, text)
    return text


def _with_links(text: str) -> str:
    """Replace the reStructuredText in docstrings by links and numbers."""
    link = r'<a href="#gluon_syncbn.\1"><code>\1</code></a>'
    text = re.sub(r":(?:class|func):<code>gluon_syncbn\.([\w.]+)</code>", link, text)
    # Markdown takes the underscores of "[1]_, [2]_" for emphasis.
    text = re.sub(r"(\[\d\])(?:</?em>|_)", r"\1", text)
    return text.replace(".. [", "[")


def _with_anchor(row: re.Match[str]) -> str:
    """Give a row an anchor that consists of the words of its first message."""
    words = re.findall(r"\w+", html.unescape(row[2]).lower())
    return f'<tr id="{"-".join(words[:8])}">{row[1]}'
