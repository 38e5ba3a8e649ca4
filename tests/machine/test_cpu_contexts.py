"""CPU contexts are safe whatever ran before the import, or the first call says what to set."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from gluon_syncbn import cpu_contexts
from gluon_syncbn.mxnet_versions import ONEDNN

from tests.support.either_mxnet import only_1
from tests.support.processes import run_program, run_python


def test_import_after_mxnet():
    run_python("import mxnet; from tests.programs import two_devices; two_devices.train()")


def test_onednn_by_choice_of_the_user():
    failed = run_program("two_devices.forward", status=1, **{ONEDNN: "1"})
    assert "MXNetError" in failed.stderr
    assert f"{ONEDNN}=0" in failed.stderr
    assert "Restart Python" in failed.stderr


def test_naive_engine():
    run_program("cpu_contexts.naive_engine", MXNET_ENGINE_TYPE="NaiveEngine")


def test_timeout_from_the_environment():
    failed = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_TIMEOUT="soon")
    last = "ImportError: environment variable GLUON_SYNCBN_TIMEOUT: "
    assert failed.stderr.rstrip().splitlines()[-1].startswith(last)


def test_an_empty_variable_counts_as_not_set():
    names = ("TIMEOUT", "CPU_CONTEXTS", "NOTEBOOK", "OPENBLAS")
    run_program("cpu_contexts.empty_variables", **{f"GLUON_SYNCBN_{name}": "" for name in names})


@pytest.mark.parametrize("name", ["CPU_CONTEXTS", "NOTEBOOK", "OPENBLAS"])
def test_switches_are_0_or_1(name):
    variable = f"GLUON_SYNCBN_{name}"
    failed = run_program("cpu_contexts.drops_after_a_failed_cell", status=1, **{variable: "off"})
    last = f"ImportError: environment variable {variable}='off' should be 0 or 1"
    assert failed.stderr.rstrip().splitlines()[-1] == last


def test_an_unknown_instruction_set():
    failed = run_python("import gluon_syncbn", status=1, GLUON_SYNCBN_ISA="AVX2")
    last = (
        "ImportError: gluon_syncbn could not register its operator: environment variable "
        "GLUON_SYNCBN_ISA='AVX2' should be baseline, avx2 or avx512"
    )
    assert failed.stderr.rstrip().splitlines()[-1] == last


@pytest.mark.parametrize("name", ["", "avx512"])
def test_instruction_sets_that_every_machine_takes(name):
    run_python("import gluon_syncbn", GLUON_SYNCBN_ISA=name)


def test_convolutions_with_several_threads_for_each_context():
    """Without the library's help, the OpenBLAS of MXNet's wheel waits forever.

    MXNet starts other workers after a fork, which need that help again.
    """
    run_program("cpu_contexts.convolutions_and_forks", OMP_NUM_THREADS="2")


@pytest.mark.parametrize(
    ("before", "setting", "warns"),
    [
        ("convolution", {}, True),
        ("sum", {}, None),
        ("array", {}, False),
        ("convolution", {ONEDNN: "1"}, False),  # as the user wants it
    ],
)
def test_late_import(before, setting, warns):
    """The warning comes if and only if the settings are not in effect."""
    result = run_program("late_imports.print_warned_and_refused", before, **setting)
    warned, refused = result.stdout.split()
    assert warned == (refused if warns is None else str(warns))


@pytest.mark.parametrize(
    ("before", "setting"),
    # oneDNN by choice of the user is the same early and late.
    [("nothing", {}), ("ones", {}), ("convolution", {}), ("nothing", {ONEDNN: "1"})],
)
def test_recurrent_layers(before, setting):
    run_program("late_imports.recurrent_layers", before, **setting)


@pytest.mark.parametrize(
    ("variable", "cuda", "files", "prepares"),
    [
        (None, False, True, True),  # MXNet for CPUs on a machine with a GPU
        (None, True, False, True),
        (None, True, True, False),
        ("1", True, True, True),
        ("0", False, False, False),
        ("0", True, True, False),
        ("", True, True, False),
    ],
)
def test_what_the_import_decides(variable, cuda, files, prepares, monkeypatch, tmp_path):
    if variable is None:
        monkeypatch.delenv("GLUON_SYNCBN_CPU_CONTEXTS", raising=False)
    else:
        monkeypatch.setenv("GLUON_SYNCBN_CPU_CONTEXTS", variable)
    if files:
        (tmp_path / "nvidia0").touch()
    features = SimpleNamespace(is_enabled=lambda name: cuda and name == "CUDA")
    monkeypatch.setattr(cpu_contexts.mx.runtime, "Features", lambda: features)
    monkeypatch.setattr(cpu_contexts, "_GPU_FILES", (f"{tmp_path}/nvidia[0-9]*", "/nowhere/*"))
    prepared = []
    monkeypatch.setattr(cpu_contexts, "prepare_cpu_contexts", lambda: prepared.append(True))
    monkeypatch.setattr(cpu_contexts, "_choice", "")
    for problem in ("they need NVRTC", None):
        monkeypatch.setattr(cpu_contexts.gpu_contexts, "find_problem", lambda: problem)  # noqa: B023
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cpu_contexts.prepare_at_import()
        assert bool(prepared) is prepares
        expected = [problem] if problem and cuda and files and not prepares else []
        assert [str(each.message).partition(": ")[2] for each in caught] == expected


@only_1  # by names of libmxnet
@pytest.mark.parametrize(
    ("variable", "changed"), [("0", ""), ("1", "environment, resource manager, products")]
)
def test_what_the_import_changes_in_mxnet(variable, changed):
    found = run_program("late_imports.print_changes_of_mxnet", GLUON_SYNCBN_CPU_CONTEXTS=variable)
    assert found.stdout.strip() == changed, found.stderr


def test_networks_of_batchnorm_keep_onednn():
    run_program("cpu_contexts.onednn_is_in_effect", GLUON_SYNCBN_CPU_CONTEXTS="0")


@pytest.mark.parametrize(("onednn", "one_is_refused"), [("1", True), ("0", False)])
def test_contexts_that_are_not_prepared(onednn, one_is_refused):
    """Without oneDNN one context is safe, and several could still wait for each other forever."""
    settings = {"GLUON_SYNCBN_CPU_CONTEXTS": "0", ONEDNN: onednn}
    run_program("cpu_contexts.not_prepared", one_is_refused, **settings)


def test_contexts_that_the_program_prepares():
    run_program("cpu_contexts.prepared_by_the_program", GLUON_SYNCBN_CPU_CONTEXTS="0")


def test_contexts_that_the_program_prepares_too_late():
    run_program("cpu_contexts.prepared_too_late", GLUON_SYNCBN_CPU_CONTEXTS="0")


def test_products_under_way_at_a_fork():
    """OpenBLAS is loaded after the library has registered its handlers of forks."""
    settings = {"OMP_NUM_THREADS": "2", "GLUON_SYNCBN_CPU_CONTEXTS": "0"}
    run_program("cpu_contexts.products_and_forks", timeout=60, **settings)


@only_1  # mixed precision
def test_an_error_of_another_operator():
    """The failing convolution runs in the same thread as the first call of the layer."""
    run_program("cpu_contexts.error_of_another_operator")
