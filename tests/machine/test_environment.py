"""Names of environment variables that no source reads are a warning of the import."""

from __future__ import annotations

import re

from gluon_syncbn import environment

from tests.support.processes import ROOT, run_python


def test_variables_of_users_are_those_of_the_page():
    page = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^\| `(GLUON_SYNCBN_\w+)=", page, re.MULTILINE)) == [
        *environment.OF_USERS
    ]


def test_every_variable_that_a_source_reads_is_known():
    reads = re.compile(r'(?:getenv|environ|get|switch)[(\[]"(GLUON_SYNCBN_\w+)"')
    folders = [ROOT / name for name in ("gluon_syncbn", "src", "tests")]
    files = [
        file for folder in folders for end in ("cc", "h", "py") for file in folder.rglob(f"*.{end}")
    ]
    found = {name for file in files for name in reads.findall(file.read_text(errors="replace"))}
    assert {"GLUON_SYNCBN_ISA", "GLUON_SYNCBN_OPENBLAS", "GLUON_SYNCBN_TIMEOUT"} < found
    assert found <= {*environment.OF_USERS, *environment.OF_OTHERS}


def test_misspelt_variables():
    variables = {"GLUON_SYNCBN_TIMOUT": "", "GLUON_SYNCBN_SOMETHING_ELSE": "1"}
    said = run_python("import gluon_syncbn", **variables).stderr
    known = (
        "GLUON_SYNCBN_CPU_CONTEXTS, GLUON_SYNCBN_ISA, GLUON_SYNCBN_NOTEBOOK, GLUON_SYNCBN_NVRTC, "
        "GLUON_SYNCBN_OPENBLAS, GLUON_SYNCBN_TIMEOUT"
    )
    assert re.findall("UserWarning: environment variable (.*)", said) == [
        f"GLUON_SYNCBN_SOMETHING_ELSE is unknown. Known are {known}",
        f"GLUON_SYNCBN_TIMOUT is unknown. Known are {known}",
    ]


def test_known_variables_do_not_warn():
    variables = dict.fromkeys([*environment.OF_USERS, *environment.OF_OTHERS], "")
    variables.pop("GLUON_SYNCBN_RUN")
    assert "GLUON_SYNCBN" not in run_python("import gluon_syncbn", **variables).stderr


def test_run_warns_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import gluon_syncbn")
    program = f"from gluon_syncbn.__main__ import main; main(['run', {str(script)!r}])"
    said = run_python(program, GLUON_SYNCBN_TIMOUT="60").stderr
    assert said.count("GLUON_SYNCBN_TIMOUT is unknown") == 1, said
