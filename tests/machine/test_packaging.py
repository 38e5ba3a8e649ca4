"""What pip reads in pyproject.toml."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gluon_syncbn.__main__ as command_line
import pytest
from packaging.requirements import Requirement

from tests.support.processes import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and later have it")


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("extra", ["cpu", "cu112", "cu112-toolkit"])
def test_later_pythons_fail_at_requires_python(project, extra):
    """They get no NumPy or MXNet, which pip might try to build before it says what is wrong."""
    wanted = [*project["dependencies"], *project["optional-dependencies"][extra]]
    for text in wanted:
        requirement = Requirement(text)
        if requirement.name.startswith(("numpy", "mxnet")):
            assert requirement.marker is not None, text
            assert requirement.marker.evaluate({"python_version": "3.11"})
            assert not requirement.marker.evaluate({"python_version": "3.12"})


def test_the_console_script_is_the_command_line(project, monkeypatch, capsys):
    module, _, function = project["scripts"]["gluon-syncbn"].partition(":")
    main = getattr(importlib.import_module(module), function)
    assert main is command_line.main
    monkeypatch.setattr(sys, "argv", ["gluon-syncbn", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out.startswith("gluon_syncbn ")
