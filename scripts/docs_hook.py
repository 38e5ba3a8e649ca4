"""A hook of MkDocs: links within the page of the API, and an anchor for every message."""

from __future__ import annotations

import html
import re
from typing import Any


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
    return text.replace("]_", "]").replace(".. [", "[")


def _with_anchor(row: re.Match[str]) -> str:
    """Give a row an anchor that consists of the words of its first message."""
    words = re.findall(r"\w+", html.unescape(row[2]).lower())
    return f'<tr id="{"-".join(words[:8])}">{row[1]}'
