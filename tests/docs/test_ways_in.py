"""Hooks and the public workflow run what the scripts do, and the site has all pages."""

from __future__ import annotations

import re

from tests.support.processes import ROOT


def test_hooks_are_the_checks_of_lint():
    lint = (ROOT / "scripts" / "lint.sh").read_text()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    checks = re.findall(r'^check "(.+?)" "\$bin/([\w-]+)"', lint, re.MULTILINE)
    assert len(checks) >= 5
    names = re.findall(r"^ +name: (.+)$", hooks, re.MULTILINE)
    # Programs of .venv, which has the versions that lint.sh runs.
    programs = re.findall(r"^ +entry: \.venv/bin/([\w-]+)", hooks, re.MULTILINE)
    assert [*zip(names, programs)] == checks


def test_the_workflow_runs_what_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text()
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    commands = re.findall(r"^scripts/.+$", ci, re.MULTILINE)
    assert len(commands) >= 3
    assert re.findall(r"^ +run: (scripts/.+)$", workflow, re.MULTILINE) == commands


def test_the_site_has_all_pages():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    # scripts/docs.sh puts these four, which do not lie in docs/, beside the others.
    pages |= {"index.md", "contributing.md", "changelog.md", "examples.md"}
    assert sorted(re.findall(r"[\w/-]+\.md", navigation)) == sorted(pages)
