"""CUDA serves no process that was forked after it had been called."""

from __future__ import annotations

import pytest

from tests.support.processes import run_program


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_child_may_use_cuda_where_the_parent_has_only_imported(device):
    run_program("cu112.train_in_child", device)


def test_workers_of_a_data_loader_beside_gpus():
    run_program("cu112.workers_of_a_data_loader")


def test_the_layer_in_a_child_that_cuda_does_not_serve_is_an_error():
    run_program("cu112.gpus_in_child")


def test_cpu_contexts_in_a_child_beside_gpus():
    run_program("cu112.cpus_in_child")


def test_forks_while_steps_are_under_way():
    run_program("cu112.forks_during_steps", GLUON_SYNCBN_TIMEOUT="20")
