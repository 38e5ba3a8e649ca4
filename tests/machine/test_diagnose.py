"""python -m gluon_syncbn diagnose: says what it tested, and raises no false alarm."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from gluon_syncbn import gpu_contexts
from gluon_syncbn.diagnose import report as diagnosis
from gluon_syncbn.diagnose import self_test
from gluon_syncbn.mxnet_versions import IS_2, ONEDNN

from tests.support.nvidia_machine import Machine
from tests.support.own_process import case
from tests.support.processes import run_interpreter, run_python

DIAGNOSE = "import sys; from gluon_syncbn.__main__ import main; sys.exit(main(['diagnose']))"
# For the processes of the self-tests too. MXNet for CUDA would be asked in another way.
TWO_GPUS = """
import mxnet
mxnet.context.num_gpus = lambda: 2
mxnet.runtime.Features.is_enabled = lambda self, name: False
"""
ENDS = """
import os, sys
if "gluon_syncbn.diagnose.self_test" in open("/proc/self/cmdline").read():
    print("no kernel image", file=sys.stderr, flush=True)
    os.abort()
"""


def test_without_gpus():
    report = run_python(DIAGNOSE).stdout
    for words in (
        "native library",
        f"MXNet's engine                      calls functions with {4 if IS_2 else 3} arguments",
        f"{ONEDNN:<36}0",
        "several CPU contexts                safe",
        "self-test on cpu(0), cpu(1)         passed",
        "self-test on GPU contexts           not run: MXNet finds no GPU",
    ):
        assert words in report


@pytest.mark.own_process
@pytest.mark.parametrize(
    "rows",
    [
        {
            "CPU contexts": "prepared: ",
            "oneDNN": "off",
            "workspaces of CPU contexts": "own",
            "matrix products on CPU contexts": "OpenBLAS 0.3.",
            "several CPU contexts": "safe",
        },
        case(
            {"CPU contexts": "prepared: GLUON_SYNCBN_CPU_CONTEXTS is 1"},
            GLUON_SYNCBN_CPU_CONTEXTS="1",
        ),
        case(
            {
                "CPU contexts": "not prepared: GLUON_SYNCBN_CPU_CONTEXTS is 0",
                "oneDNN": "in effect",
                "workspaces of CPU contexts": "shared: CPU contexts are not prepared",
                "matrix products on CPU contexts": "OpenBLAS 0.3.13",
                "several CPU contexts": "refused: CPU contexts are not prepared, because",
            },
            GLUON_SYNCBN_CPU_CONTEXTS="0",
        ),
        case(
            {
                "oneDNN": "in effect",
                "workspaces of CPU contexts": "own",
                "several CPU contexts": "refused: oneDNN is in effect",
            },
            GLUON_SYNCBN_OPENBLAS="0",
            **{ONEDNN: "1"},
        ),
    ],
)
def test_preparations_of_cpu_contexts(rows):
    found = dict(diagnosis._facts())
    for name, value in rows.items():
        assert str(found[name]).startswith(value), found


def test_cpu_contexts_beside_gpus(tmp_path):
    """The GPUs here are made up, and fail."""
    (tmp_path / "sitecustomize.py").write_text(TWO_GPUS)
    report = run_python(DIAGNOSE, status=1, PYTHONPATH=str(tmp_path)).stdout
    assert "several CPU contexts                safe" in report
    assert "self-test on cpu(0), cpu(1)         passed" in report
    assert "self-test on gpu(0), gpu(1)         FAILED: " in report


def test_a_driver_that_refuses_mxnet():
    """As one that is too old for MXNet's CUDA does; MXNet raises an error when asked for GPUs."""
    program = """
import mxnet as mx
def refuse():
    raise mx.base.MXNetError("Traceback:\\nCUDA: driver version is insufficient")
mx.context.num_gpus = refuse
from gluon_syncbn.diagnose import self_test
self_test.find_failure = lambda device_type: None
"""
    report = run_python(program + DIAGNOSE).stdout
    assert "GPUs for MXNet                      none: CUDA: driver version is insu" in report
    assert "several CPU contexts                safe" in report


COMMAND = "import sys; sys.argv = ['gluon-syncbn', *sys.argv[1:]]; import gluon_syncbn"


def test_facts_where_mxnet_cannot_be_imported(tmp_path):
    """As the command imports the package, before it runs."""
    machine = Machine(tmp_path)
    machine.to_system("libcuda.so.1")
    machine.package("nvidia-cublas-cu11", "libcublas.so.11")
    program = COMMAND.replace("*sys.argv[1:]", "'diagnose'")
    report = machine.run(f"import sys; sys.stdout = sys.stderr; {program}", status=1)
    for words in (
        "Python                              3.",
        "NVIDIA driver                       ",
        "package nvidia-cublas-cu11          1",
        f"MXNet                               {tmp_path}/site/mxnet",
        "needs libcudnn.so.8                 missing",
        "error: ",
        "needs libcudnn.so.8, which is neither",
    ):
        assert words in report, report
    assert "Traceback" not in report


def test_no_facts_and_no_traceback_for_other_commands(tmp_path):
    """NumPy 1.24 has no numpy.bool, which MXNet asks for."""
    (tmp_path / "mxnet.py").write_text("import numpy; del numpy.bool; numpy.bool")
    end = run_python(COMMAND, "export", *"abc", status=1, PYTHONPATH=str(tmp_path))
    assert not end.stdout
    assert end.stderr.count("\n") == 1
    assert "error: gluon_syncbn needs Apache MXNet 1.9.1 or 2, which could not be" in end.stderr
    program = "import sys; sys.argv = ['train.py', 'diagnose']; import gluon_syncbn"
    traceback = run_python(program, status=1, PYTHONPATH=str(tmp_path)).stderr
    assert traceback.rstrip().splitlines()[-1].startswith("ImportError: gluon_syncbn needs")


# As pip writes the console script.
SCRIPT = """
import sys
sys.argv[0] = "gluon-syncbn"
from gluon_syncbn.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("arguments", ["--version", "run --help", "export"])
@pytest.mark.parametrize("command", [["-c", SCRIPT], ["-m", "gluon_syncbn"]], ids=["script", "-m"])
def test_help_version_and_mistakes_need_no_mxnet(tmp_path, command, arguments):
    (tmp_path / "mxnet.py").write_text("raise ImportError('imported')")
    status = 2 if arguments == "export" else 0
    command = [*command, *arguments.split()]
    end = run_interpreter(*command, status=status, PYTHONPATH=str(tmp_path))
    said = end.stdout + end.stderr
    assert said.startswith(("gluon_syncbn ", "usage: ")), said


def test_options_of_another_module_are_its_own(tmp_path):
    (tmp_path / "training.py").write_text("import gluon_syncbn, sys; print(sys.argv)")
    end = run_interpreter("-m", "training", "--version", PYTHONPATH=str(tmp_path))
    assert "'--version']" in end.stdout


ADDS = (
    "This command adds MXNet 1.9.1, and a NumPy for it, to the installed package: "
    "pip install 'gluon_syncbn[cpu]' (or cu112, or mxnet2)"
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ModuleNotFoundError("No module named 'mxnet'", name="mxnet"),
            "gluon_syncbn needs Apache MXNet 1.9.1 or 2, which could not be imported: No module "
            f"named 'mxnet'. {ADDS}",
        ),
        (
            AttributeError("module 'numpy' has no attribute 'bool'.\n`np.bool` was a ..."),
            f"NumPy {np.__version__} is installed, and MXNet's packages need one below 1.24. "
            "This command installs one: pip install 'numpy<1.24'",
        ),
        (  # no command that would install another MXNet
            ModuleNotFoundError("No module named 'requests'", name="requests"),
            "gluon_syncbn needs Apache MXNet 1.9.1 or 2, which could not be imported: No module "
            "named 'requests'.",
        ),
    ],
)
def test_why_mxnet_cannot_be_imported(error, text):
    assert diagnosis.explain(error) == text


def test_settings_of_the_user_that_fail(monkeypatch):
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    failure = self_test.find_failure("cpu")
    assert "NaiveEngine runs one operation after the other" in failure


def test_the_error_of_the_layer_comes_before_the_end_of_the_process(monkeypatch):
    def run(command, env, timeout, **_):
        assert 0 < float(env["GLUON_SYNCBN_TIMEOUT"]) < timeout
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert self_test.find_failure("cpu") is None


def test_a_process_that_ends_is_reported(monkeypatch, tmp_path):
    """As MXNet ends it for a GPU that does not work."""
    (tmp_path / "sitecustomize.py").write_text(ENDS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert self_test.find_failure("cpu") == "the process ended with status -6: no kernel image"


@pytest.mark.parametrize(
    ("driver", "nvrtc", "problem"),
    [
        (None, "11.8 (lib)", "the NVIDIA driver is missing: libcuda.so.1 does not load"),
        (12020, "none: no library", "they need NVRTC: no library"),
        (11020, "11.8 (lib)", None),
        (13010, "12.4 (lib)", None),
        (
            11040,
            "13.0 (lib)",
            "the NVIDIA driver is for CUDA up to 11.4, which is too old for NVRTC 13.0: install "
            "driver 580.65.06 or later",
        ),
    ],
)
def test_what_gpu_contexts_lack(driver, nvrtc, problem, monkeypatch, tmp_path):
    (tmp_path / "code").write_bytes(bytes(200_000))
    library = {"nvrtc": nvrtc, "code_cache": str(tmp_path)}
    functions = {name: value.format for name, value in library.items()}
    monkeypatch.setattr(gpu_contexts, "LIBRARY", SimpleNamespace(**functions))
    monkeypatch.setattr(gpu_contexts, "_driver_version", lambda: driver)
    assert gpu_contexts.find_problem() == problem
    rows = gpu_contexts.describe()
    if driver is None:
        assert rows == {"NVIDIA driver": "none (libcuda.so.1 does not load)"}
        return
    assert rows["NVRTC"] == nvrtc
    assert rows["compiled kernels"] == f"1 files with 0.2 MB in {tmp_path}"
    assert rows["GPU contexts"] == (
        f"do not work: {problem}" if problem else "have driver and NVRTC"
    )


def test_driver_is_asked(monkeypatch):
    def answer(version) -> int:
        version._obj.value = 11040
        return 0

    libraries = {"libcuda.so.1": SimpleNamespace(cuDriverGetVersion=answer)}
    monkeypatch.setattr(gpu_contexts.ctypes, "CDLL", libraries.__getitem__)
    assert gpu_contexts.describe()["NVIDIA driver"] == "for CUDA up to 11.4"
