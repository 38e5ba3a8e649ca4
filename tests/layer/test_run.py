"""``gluon-syncbn run``: programs of other people's making, unchanged, with our layer.

Python itself is the oracle of everything but the layer: the same program runs both ways.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.either_mxnet import IS_2, only_1
from tests.support.oracle import Expected, batch_norm, relative_error
from tests.support.processes import ROOT, clean_environment, run_interpreter

RUN = ("-m", "gluon_syncbn", "run")


def python(
    folder: Path, *arguments: str, stdin: str = "", PYTHONPATH: str = str(ROOT)
) -> subprocess.CompletedProcess:
    """Run Python in `folder` with the package importable."""
    options = {"status": None, "stdin": stdin, "timeout": 120, "folder": folder}
    options["PYTHONUNBUFFERED"] = ""  # with which nothing that was printed could be lost
    return run_interpreter("-W", "ignore", *arguments, PYTHONPATH=PYTHONPATH, **options)


def program_path(name: str) -> str:
    return str(ROOT / "tests" / "programs" / "run" / name)


def run(folder: Path, program: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Run a file of tests/programs/run by the command, expect success, and return its stderr."""
    result = python(folder, *RUN, *options, program_path(program), *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stderr


POOL = r".*storage\.cc.*\n"  # at its import, MXNet 2 says which pool of memory it takes
ZEROS, ONES = np.zeros(4), np.ones(4)


def run_and_compare(
    folder: Path, program: str, how: str, options: tuple[str, ...] = ()
) -> tuple[str, Any, Expected]:
    """Run a program that writes arrays, and compare its output with that of one device."""
    said = run(folder, program, how, options=options)
    found = np.load(folder / "found.npz")
    expected = batch_norm(found["x"], found["dy"], ONES, ZEROS, ZEROS, ONES)
    assert relative_error(found["out"], expected.out) < 1e-5
    return said, found, expected


FACTS = """
import sys
print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path)
print(sys.flags, sys.warnoptions, sys.stdout.write_through, sorted({*sys.modules} - {"atexit"}))
"""
COMMANDS = {
    "script": ("-O", "-X", "utf8", "-u", "--", "folder/__main__.py", "-m", "--convert"),
    "folder": ("folder", "x"),
    "zip": ("folder.zip",),
    "module": ("-m", "folder", "-h", "--", "x"),
    "link": ("link.py",),
    "stdin": ("-", "x"),
}
ENDINGS = {
    "script": "def fail():\n    1 / 0\nfail()\n",
    "module": "sys.exit('goodbye')\n",
    "link": "raise KeyboardInterrupt\n",
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_program_sees_what_python_shows_it(kind, tmp_path):
    text, command = FACTS + ENDINGS.get(kind, ""), COMMANDS[kind]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(text)
    (tmp_path / "link.py").symlink_to("folder/__main__.py")
    (tmp_path / "sitecustomize.py").write_text("print('own')\n")
    with zipfile.ZipFile(tmp_path / "folder.zip", "w") as archive:
        archive.writestr("__main__.py", text)
    flags = 4 if kind == "script" else 0
    paths = f"{ROOT}:{tmp_path}"
    expected = python(tmp_path, *command, stdin=text, PYTHONPATH=paths)
    command = (*command[:flags], *RUN, *command[flags:])
    result = python(tmp_path, *command, stdin=text, PYTHONPATH=paths)
    assert result.stdout == f"own\n{expected.stdout}"  # the command is a Python, too
    assert result.returncode == expected.returncode
    warning = "warning: nothing was synchronized, because the program did not import mxnet"
    said = re.sub(POOL, "", result.stderr)
    assert said == f"{expected.stderr}gluon_syncbn: {warning}\n"


def test_a_program_has_the_package_of_the_command(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import gluon_syncbn\nprint(gluon_syncbn.__file__)\n")
    result = python(ROOT, *RUN, str(program), PYTHONPATH="")
    assert result.stdout == f"{ROOT}/gluon_syncbn/__init__.py\n"


def test_nothing_is_said_without_stderr(tmp_path):
    (tmp_path / "program.py").write_text("print(1)\n")
    command = f"exec {shlex.quote(sys.executable)} -W ignore -m gluon_syncbn run program.py 2>&-"
    environment = {**clean_environment(), "PYTHONPATH": str(ROOT)}
    assert subprocess.check_output(command, shell=True, env=environment, cwd=tmp_path) == b"1\n"


def test_errors_after_the_one_that_ended_the_program_are_not_shown(tmp_path):
    (tmp_path / "program.py").write_text(
        "import mxnet as mx\n"
        "first, second = (mx.nd.random.normal(0, -1, (2,), ctx=mx.cpu(i)) for i in range(2))\n"
        "first.asnumpy()\n"
    )
    result = python(tmp_path, *RUN, "program.py")
    assert result.returncode == 1
    assert result.stderr.count("scale parameter in gaussian has to be positive") == 1


@pytest.mark.parametrize("how", ["hybridize", "imperative"])
def test_first_calls_from_several_threads(how, tmp_path):
    said, found, expected = run_and_compare(tmp_path, "threads.py", how)
    assert relative_error(found["dx"], expected.dx) < 1e-5
    assert "1 layer (syncbatchnorm0) synchronized cpu(0), cpu(1) in 1 round" in said


@only_1  # GluonCV
@pytest.mark.parametrize("how", ["hybridize", "imperative"])
def test_the_shape_of_gluoncvs_segmentation_script(how, tmp_path):
    said, found, expected = run_and_compare(tmp_path, "segmentation.py", how)
    assert relative_error(found["dgamma"], expected.dgamma) < 1e-5
    assert relative_error(found["mean"], np.tile(expected.running_mean, 2)) < 1e-5
    after = (expected.running_mean, expected.running_var)
    inference = batch_norm(found["x"], found["dy"], ONES, ZEROS, *after, batch_statistics=False)
    assert relative_error(found["evaluated"], inference.out) < 1e-5
    names = "net_syncbatchnorm0, net_syncbatchnorm1"
    assert f"2 layers ({names}) synchronized cpu(0), cpu(1) in 1 round each\n" in said


@only_1  # prefixes, amp of mx.contrib
def test_the_shape_of_gluoncvs_detection_scripts(tmp_path):
    said = run(tmp_path, "detection.py", options=("--convert",))
    found = np.load(tmp_path / "found.npz")
    mean = 0.19 * found["x"].mean((0, 2, 3))
    assert relative_error(found["mean"], np.tile(mean, 2)) < 1e-5
    names = "net_batchnorm0, net_same0"
    assert f"2 layers ({names}) synchronized cpu(0), cpu(1) in 2 rounds each\n" in said
    for kind in ("Own", "BatchNormReLU"):
        assert f"1 layer of {kind} stayed (" in said


@only_1  # Module, mx.sym.contrib
def test_modules_and_operators(tmp_path):
    said, found, expected = run_and_compare(tmp_path, "module.py", "")
    assert relative_error(found["product"], expected.out * found["dy"]) < 1e-5
    assert relative_error(found["dx"], expected.dx) < 1e-5
    assert relative_error(found["var"], expected.running_var) < 1e-5
    assert "2 layers (b, syncbatchnorm0) synchronized cpu(0), cpu(1) in 1 round each\n" in said


@only_1  # mx.sym.contrib
@pytest.mark.parametrize("how", ["bind", "simple_bind"])
def test_executors_meet_by_mxnets_key(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, "executors.py", how)
    assert "1 layer (a) synchronized cpu(0), cpu(1) in 1 round\n" in said


@only_1  # mx.sym.contrib
def test_layers_of_one_name_are_counted_apart(tmp_path):
    said, *_ = run_and_compare(tmp_path, "one_name.py", "")
    for rounds in ("1 round", "3 rounds"):
        assert f"1 layer (bn) synchronized cpu(0), cpu(1) in {rounds}\n" in said


@only_1  # gluon.contrib
@pytest.mark.parametrize("options", [(), ("--convert",)], ids=str)
@pytest.mark.parametrize("how", ["hybridize", "imperative"])
def test_operators_that_blocks_call_themselves(how, options, tmp_path):
    said, *_ = run_and_compare(tmp_path, "own_operator.py", how, options=options)
    assert "1 layer (ofmxnet0) synchronized cpu(0), cpu(1) in 1 round\n" in said
    node = {"hybridize": "plain_fwd", "imperative": "plain"}[how]
    named = f"1 operator BatchNorm stayed ({node}): "
    # Without --convert, only graphs are searched.
    assert (named in said) == (how == "hybridize" or options != ())


@only_1  # MXNet 2 has no layer that several threads can trace
def test_a_child_that_is_forked_in_a_first_call(tmp_path):
    said, *_ = run_and_compare(tmp_path, "raw_forks.py", "", options=("--convert",))
    assert "1 other process: 1 layer (batchnorm1) synchronized" in said


def test_a_program_that_ends_by_exit_is_summarized(tmp_path):
    text = "import os, mxnet\nos._exit(3)\n"
    (tmp_path / "program.py").write_text(text)
    result = python(tmp_path, *RUN, "program.py")
    assert result.returncode == 3
    assert "nothing was synchronized, because the program made no SyncBatchNorm" in result.stderr


IMPORTS = {
    "lazy": "from importlib import util\n"
    "spec = util.find_spec('mxnet')\n"
    "spec.loader = util.LazyLoader(spec.loader)\n"
    "mxnet = sys.modules['mxnet'] = util.module_from_spec(spec)\n"
    "spec.loader.exec_module(mxnet)\n",
    "file": "import pkgutil\nprint(len(pkgutil.get_data('mxnet', '__init__.py')))\nimport mxnet\n",
    "plain": "import mxnet\n",
}


@pytest.mark.parametrize("kind", IMPORTS)
def test_how_a_program_imports_mxnet(kind, tmp_path):
    program = f"import sys\n{IMPORTS[kind]}print(mxnet.nd.ones(2).sum().asscalar(), flush=True)\n"
    after = "print(mxnet is sys.modules['mxnet'], mxnet.__spec__.loader, mxnet.__loader__)\n"
    (tmp_path / "program.py").write_text(program + after)
    expected, result = (python(tmp_path, *how, "program.py") for how in ((), RUN))
    assert re.sub(" at 0x.*?>", "", result.stdout) == re.sub(" at 0x.*?>", "", expected.stdout)
    assert "nothing was synchronized, because the program made no SyncBatchNorm" in result.stderr


@pytest.mark.parametrize("command", [("nosuch.py",), ("-m", "nosuch")])
def test_a_program_that_does_not_exist(command, tmp_path):
    expected, result = (python(tmp_path, *how, *command) for how in ((), RUN))
    said = re.sub(POOL, "", result.stderr)
    assert (result.returncode, said) == (expected.returncode, expected.stderr)


@only_1  # mx.sym.contrib
def test_no_gpus_are_one_device(tmp_path):
    """Programs give the number of GPUs. MXNet's operator crashes with 0."""
    run(tmp_path, "no_gpus.py")


def test_symbols_in_files(tmp_path):
    assert python(tmp_path, program_path("save_symbols.py")).returncode == 0
    said, *_ = run_and_compare(tmp_path, "load_symbols.py", "")
    assert "1 layer (bn) synchronized cpu(0), cpu(1) in 1 round\n" in said
    assert "1 operator _contrib_SyncBatchNorm stayed (" in said
    assert "1 operator BatchNorm stayed (" in said


@only_1  # networks that are called with symbols
@pytest.mark.parametrize("how", ["module", "hybridize", "imperative"])
def test_networks_that_become_symbols_before_they_have_contexts(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, "features.py", how, options=("--convert",))
    assert "synchronized cpu(0), cpu(1) in 1 round\n" in said
    assert "1 operator BatchNorm stayed (" in said


@only_1
@pytest.mark.parametrize(
    "how",
    ["module", "feedforward", "statistics", "imported", "hybridized", "converted", "threads"],
)
def test_batchnorm_nodes(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, "nodes.py", how, options=("--convert",))
    rounds = "1 round" if how in ("module", "feedforward", "statistics") else "2 rounds"
    assert f"1 layer (bn) synchronized cpu(0), cpu(1) in {rounds}\n" in said
    assert "stayed" not in said


@pytest.mark.skipif(not IS_2, reason="MXNet 1.9.1 has no such operator")
@pytest.mark.parametrize("how", ["hybridize", "imperative"])
def test_the_operator_of_numpy_arrays(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, "numpy_operator.py", how)
    assert "synchronized cpu(0), cpu(1) in 1 round" in said


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver", "subprocess"])
def test_processes_that_the_program_starts(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, "children.py", how)
    counts = re.findall("^gluon_syncbn: (.*?)1 layer .* in (.*)", said, flags=re.MULTILINE)
    others = "2 other processes: " if how == "subprocess" else "1 other process: "
    assert counts == [("", "1 round"), (others, "2 rounds")]


@pytest.mark.parametrize("how", ["command", "fork"])
def test_a_program_that_only_starts_processes(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, "starters.py", how)
    assert re.search(r"^gluon_syncbn: 1 other process: 1 layer .* in 2 rounds$", said, re.MULTILINE)
    assert "warning" not in said


@pytest.mark.parametrize(
    "how", ["deepcopy", *(pytest.param(how, marks=only_1) for how in ("pickle", "spawn"))]
)
def test_copies_are_converted(how, tmp_path):
    _, found, expected = run_and_compare(tmp_path, "copies.py", how, options=("--convert",))
    for name in ("before", "after") if how != "spawn" else ():
        assert relative_error(found[name].reshape(expected.out.shape), expected.out) < 1e-5


def test_files_and_summaries_are_those_of_the_network_as_it_was(tmp_path):
    expected = python(tmp_path, program_path("files.py"))
    result = python(tmp_path, *RUN, "--convert", program_path("files.py"))
    assert expected.returncode == result.returncode == 0, expected.stderr + result.stderr
    assert "synchronized cpu(0), cpu(1) in 1 round each" in result.stderr
    assert result.stdout == expected.stdout
    assert "Total params: 16" in result.stdout


@only_1  # mx.sym.contrib
def test_layers_that_never_synchronize_are_a_warning(tmp_path):
    result = python(tmp_path, *RUN, program_path("unused.py"))
    assert result.stdout == "['bn_output', 'bn_mean', 'bn_var']\n[2. 4.] [1. 4.]\n"
    assert result.stderr == (
        "gluon_syncbn: warning: nothing was synchronized, although the program made 1 "
        "SyncBatchNorm: none was trained on several devices\n"
        "gluon_syncbn: 2 operators _contrib_SyncBatchNorm stayed (bn, nd): run replaces "
        "SyncBatchNorm without output_mean_var, and --convert the BatchNorms of SymbolBlocks and "
        "Modules\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "a script, or -m and a module, is missing"),
        (("--num-devices", "2", "x.py"), "--num-devices belongs to --convert"),
        (("--num-devices", "0", "--convert", "x.py"), "'0' should be a whole number of at least 1"),
    ],
)
def test_wrong_options_are_named(options, message, capsys):
    from gluon_syncbn.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["run", *options])
    assert message in capsys.readouterr().err


def test_options_of_python_that_ignore_the_environment():
    result = python(ROOT, "-E", *RUN, "x.py")
    assert result.returncode == 2
    assert "Python's options -E, -I and -S keep run from reaching the program" in result.stderr
