"""The site has all pages."""

from __future__ import annotations

import re

from tests.support.processes import ROOT


def test_the_site_has_all_pages():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    # scripts/docs.sh puts these four, which do not lie in docs/, beside the others.
    pages |= {"index.md", "contributing.md", "changelog.md", "examples.md"}
    assert sorted(re.findall(r"[\w/-]+\.md", navigation)) == sorted(pages)
