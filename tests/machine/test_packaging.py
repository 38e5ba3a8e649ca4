"""What pip installs, and errors of installations."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import gluon_syncbn
import gluon_syncbn.__main__ as command_line
import pytest
from gluon_syncbn.diagnose import self_test
from gluon_syncbn.processes.horovod import require_horovod
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.support.pages import links
from tests.support.processes import ROOT, run_python

INSTALLED = distribution("gluon_syncbn")
EXTRAS = {*INSTALLED.metadata.get_all("Provides-Extra")} - {"test", "docs", "lint"}
MXNET = {"cpu": "1.9.1", "mxnet2": "2.0.0b1", "cu112": "1.9.1", "cu112-toolkit": "1.9.1"}
MODULES = {str(file.relative_to(ROOT)) for file in (ROOT / "gluon_syncbn").rglob("*.py")}


@pytest.mark.filterwarnings("ignore")  # of older versions of setuptools
def test_the_wheel_has_all_modules_and_pages(monkeypatch):
    """Errors name pages, and pages link to each other."""
    setuptools = pytest.importorskip("setuptools", "61")  # which reads pyproject.toml
    monkeypatch.chdir(ROOT)
    project = setuptools.Distribution({"script_name": "setup.py", "license": "there"})
    project.parse_config_files()
    project.include_package_data = False  # which runs a command
    build = project.get_command_obj("build_py")
    build.build_lib = ""
    build.ensure_finalized()
    pages = {f"gluon_syncbn/docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    expected = {*MODULES, *pages, "gluon_syncbn/py.typed"}
    assert {*build.get_outputs(include_bytecode=False)} == expected


def test_an_error_names_a_page_that_exists(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(ImportError, match="needs Horovod") as error:
        require_horovod()
    assert Path(str(error.value).rpartition(" ")[2]).is_file()


def test_no_module_has_the_name_of_something_public():
    """A module of that name would take the place of a function, and the site would show both."""
    assert not {Path(module).stem for module in MODULES} & {*gluon_syncbn.__all__}


@pytest.mark.parametrize("python", ["3.8", "3.11", "3.12"])
@pytest.mark.parametrize("extra", sorted(EXTRAS | {*MXNET}))
def test_extras_for_programs(extra, python):
    """All keep the NumPy of MXNet, and ask a Python that has no MXNet for what does not exist.

    pip looks at requires-python later than at packages, which it would build for minutes.
    """
    environment = {"extra": extra, "python_version": python}
    wanted = [
        (each.name.split("-")[0], str(each.specifier))
        for each in map(Requirement, INSTALLED.requires)
        if each.marker is None or each.marker.evaluate(environment)
    ]
    has_mxnet = python != "3.12"
    assert (("numpy", "<1.24") in wanted) == has_mxnet
    version = MXNET.get(extra) if has_mxnet else "0+needs.python.3.8.to.3.11"
    assert [text for name, text in wanted if name == "mxnet"] == [f"=={version}"] * (extra in MXNET)
    assert (f"{python}.0" in SpecifierSet(INSTALLED.metadata["Requires-Python"])) == has_mxnet


def test_the_source_archive_has_what_the_readme_links_to():
    packed = (ROOT / "MANIFEST.in").read_text().split()
    wanted = {Path(link.partition("#")[0]).parts[0] for link in links(ROOT / "README.md")}
    assert wanted <= {*packed}


def test_the_console_script_is_the_command_line():
    (script,) = INSTALLED.entry_points
    assert (script.name, script.load()) == ("gluon-syncbn", command_line.main)


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


def test_a_library_of_another_version_is_an_error(tmp_path):
    says = 'const char* gluon_syncbn_build_info(void) { return "0.1.9, C++17, compiler 12"; }'
    (tmp_path / "library.c").write_text(says)
    library = str(tmp_path / "libgluon_syncbn.so")
    subprocess.run(["cc", "-shared", "-o", library, tmp_path / "library.c"], check=True)
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
