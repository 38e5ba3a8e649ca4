"""Whole programs, started as users start them."""

from __future__ import annotations

from tests.docs.test_snippets import program_of
from tests.support.processes import ROOT

from .launch import start


def test_the_example_in_the_docs(tmp_path):
    program = tmp_path / "example.py"
    program.write_text(program_of(ROOT / "docs" / "distributed.md"))
    job = start("", 2, program=program)
    assert job.status == 0, job.output
