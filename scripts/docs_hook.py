"""A hook of MkDocs: what docstrings have of reStructuredText, as HTML on the page of the API."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Turn references to names and papers into links and numbers."""
    if page.file.src_uri != "api.md":
        return html
    link = r'<a href="#gluon_syncbn.\1"><code>\1</code></a>'
    html = re.sub(r":(?:class|func):<code>gluon_syncbn\.([\w.]+)</code>", link, html)
    return html.replace("]_", "]").replace(".. [", "[")
