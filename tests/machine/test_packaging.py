"""What pip reads in pyproject.toml."""

from __future__ import annotations

import importlib
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gluon_syncbn
import gluon_syncbn.__main__ as command_line
import pytest
from gluon_syncbn.diagnose import self_test
from gluon_syncbn.processes.horovod import require_horovod
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from setuptools import find_packages

from tests.support.pages import links
from tests.support.processes import ROOT, run_python

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and later have it")


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def modules() -> list[str]:
    """Names of all modules of the package, with those of the folders above them."""
    files = (ROOT / "gluon_syncbn").rglob("*.py")
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


def test_the_wheel_has_all_modules():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = settings["packages"]["find"]
    assert found.pop("namespaces") is False
    packages = find_packages(str(ROOT), **found)
    assert {name.rpartition(".")[0] for name in modules()} == {*packages}
    assert not any(name.split(".")[0] != "gluon_syncbn" for name in packages)


def test_the_wheel_has_the_pages():
    """Errors name them, and they link to each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "gluon_syncbn"
    patterns = settings["package-data"]["gluon_syncbn"]
    packed = {file for pattern in patterns for file in package.glob(pattern)}
    assert {package / "docs" / page.name for page in (ROOT / "docs").glob("*.md")} < packed


def test_an_error_names_a_page_that_exists(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(ImportError, match="needs Horovod") as error:
        require_horovod()
    assert Path(str(error.value).rpartition(" ")[2]).is_file()


def test_no_module_has_the_name_of_something_public():
    """A module of that name would take the place of a function, and the site would show both."""
    assert not {name.rpartition(".")[2] for name in modules()} & {*gluon_syncbn.__all__}


@pytest.mark.parametrize("extra", ["cpu", "mxnet2", "cu112", "cu112-toolkit"])
def test_a_python_that_has_no_mxnet_is_an_error_of_the_extra(project, extra):
    """pip looks at requires-python later than at packages, which it would build for minutes."""
    wanted = [Requirement(text) for text in project["optional-dependencies"][extra]]

    def asked_for(python: str) -> dict[str, str]:
        return {
            each.name.split("-")[0]: str(each.specifier)
            for each in wanted
            if not each.name.startswith("nvidia")
            and (each.marker is None or each.marker.evaluate({"python_version": python}))
        }

    for python in ("3.8", "3.11"):
        assert asked_for(python) == {
            "mxnet": "==2.0.0b1" if extra == "mxnet2" else "==1.9.1",
            "numpy": "<1.24",
        }
    assert asked_for("3.12") == {"mxnet": "==0+needs.python.3.8.to.3.11"}
    assert "3.11.7" in SpecifierSet(project["requires-python"])
    assert "3.12.0" not in SpecifierSet(project["requires-python"])


def test_every_extra_for_programs_keeps_the_numpy_of_mxnet(project):
    """Whoever adds an extra later gets the NumPy that it asks for."""
    extras = project["optional-dependencies"]
    for extra in {*extras} - {"test", "docs", "lint"}:
        assert "numpy<1.24; python_version < '3.12'" in extras[extra], extra


def test_the_source_archive_has_what_the_readme_links_to():
    packed = (ROOT / "MANIFEST.in").read_text().split()
    assert {re.split("[/#]", link)[0] for link in links(ROOT / "README.md")} <= {*packed, ""}


def test_the_console_script_is_the_command_line(project, monkeypatch, capsys):
    module, _, function = project["scripts"]["gluon-syncbn"].partition(":")
    main = getattr(importlib.import_module(module), function)
    assert main is command_line.main
    monkeypatch.setattr(sys, "argv", ["gluon-syncbn", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out.startswith("gluon_syncbn ")


@pytest.mark.parametrize(
    ("compilers", "message"),
    [
        ([], "error: gluon_syncbn needs a C++ compiler, and there is none here. Install g++ "),
        (["c++"], "error: CMake configuration failed: the lines above with 'CMake Error' or "),
    ],
)
def test_a_failed_build_ends_with_the_reason(tmp_path, compilers, message, monkeypatch):
    class FailedLiveProcessError(Exception):
        pass

    def setup(**_: object) -> None:
        raise FailedLiveProcessError("CMake configuration failed")

    for name in compilers:
        (tmp_path / name).touch(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, members in {
        "setuptools": {"setup": setup},
        "setuptools.command.bdist_wheel": {"bdist_wheel": object},
        "scikit_build_core": {},
        "scikit_build_core.errors": {"FailedLiveProcessError": FailedLiveProcessError},
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "setup.py"))
    assert str(end.value).startswith(message)


def test_sources_without_the_library_say_so(tmp_path):
    """As in a clone after ``pip install .``, where Python takes the sources first."""
    without = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "gluon_syncbn", tmp_path / "gluon_syncbn", ignore=without)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import gluon_syncbn"
    said = run_python(program, status=1, GLUON_SYNCBN_LIBRARY="").stderr
    assert "gluon_syncbn was installed without its native library" in said
    (tmp_path / "CMakeLists.txt").touch()
    said = run_python(program, status=1, GLUON_SYNCBN_LIBRARY="").stderr
    assert f"{tmp_path} has the sources of gluon_syncbn without the native library" in said


def build_of(version: str, folder: Path) -> str:
    """Build a library that says that it is of this version, and has nothing else."""
    source = folder / "library.c"
    source.write_text(
        f'const char* gluon_syncbn_build_info(void) {{ return "{version}, C++17, compiler 12"; }}'
    )
    library = folder / "libgluon_syncbn.so"
    subprocess.run(["cc", "-shared", "-o", str(library), str(source)], check=True)
    return str(library)


def test_a_library_of_another_version_is_an_error(tmp_path):
    library = build_of("0.1.9", tmp_path)
    said = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_LIBRARY=library).stderr
    assert said.splitlines()[-1] == (
        f"ImportError: {library} is the native library of gluon_syncbn 0.1.9, but the Python files "
        f"beside it are of {gluon_syncbn.__version__}: install both again from one source, with "
        "pip install --force-reinstall --no-deps . in a clone, or the name of a wheel for the dot"
    )
    diagnose = "import sys; sys.argv = ['gluon-syncbn', 'diagnose']; import gluon_syncbn"
    ended = run_python(diagnose, status=1, GLUON_SYNCBN_LIBRARY=library)
    assert f"gluon_syncbn                        {gluon_syncbn.__version__} (" in ended.stdout
    assert f"{'NVRTC':<36}unknown: " in ended.stdout
    assert ended.stderr.startswith(f"error: {library} is the native library of gluon_syncbn 0.1.9")


@pytest.mark.parametrize(
    ("called", "name"),
    [("/bin/gluon-syncbn", "gluon-syncbn"), ("__main__.py", "python -m gluon_syncbn")],
)
def test_usage_says_how_the_command_was_called(called, name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [called, "export"])
    with pytest.raises(SystemExit, match="2"):
        command_line.main()
    assert capsys.readouterr().err.startswith(f"usage: {name} export ")


def test_the_self_test_ignores_sources_in_the_current_folder(tmp_path, monkeypatch):
    package = tmp_path / "gluon_syncbn"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('the sources')")
    monkeypatch.chdir(tmp_path)
    assert self_test.find_failure("cpu") is None
