"""Snippets and links of the pages in Markdown."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt

from tests.support.processes import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
]


def snippets(page: Path, language: str) -> list[str]:
    """The fenced code blocks in `language`, each line at its number on the page, for tracebacks."""
    fences = [token for token in MarkdownIt().parse(page.read_text()) if token.type == "fence"]
    assert all(fence.info.strip() for fence in fences), f"{page.name}: a fence names no language"
    return ["\n" * (t.map[0] + 1) + t.content for t in fences if t.info.split()[0] == language]


def links(page: Path) -> list[str]:
    """Where links and pictures lead, but for those to other sites."""
    tokens = MarkdownIt().enable("table").parse(page.read_text())
    inline = [child for token in tokens for child in token.children or ()]
    found = [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in inline]
    return [link for link in found if link and "://" not in link]
