"""Processes that fork: DataLoader's workers, multiprocessing, subprocess."""

from __future__ import annotations

import pytest

from tests.support.either_mxnet import only_1
from tests.support.processes import run_program

# A round waits forever where nothing ends it.
NO_TIMEOUT = {"GLUON_SYNCBN_TIMEOUT": "0"}


def test_fork_while_a_device_waits():
    """The round fails as after any error, and training goes on in parent and child."""
    run_program("forks.while_a_device_waits", **NO_TIMEOUT)


@pytest.mark.parametrize("fork", ["subprocess", "thread", pytest.param("loader", marks=only_1)])
def test_ways_to_fork_while_a_device_waits(fork):
    run_program(f"forks.by_a_{fork}", **NO_TIMEOUT)


@only_1  # the loader of MXNet 2 does not wait
def test_a_loader_that_is_made_while_a_device_waits():
    """Its constructor waits for all operations before it forks, so only the timeout ends that."""
    run_program("forks.new_loader_while_a_device_waits")


def test_fork_while_the_devices_are_on_their_way():
    """All devices have been called: none waits in vain, however long it takes them."""
    run_program("forks.while_the_devices_are_on_their_way", **NO_TIMEOUT)


def test_fork_with_an_unread_error():
    """The error is there afterwards, also where no array of the program's has it."""
    run_program("forks.with_an_unread_error")


def test_drop_step():
    """A step that was broken off is forgotten, whichever device comes first in the next."""
    run_program("forks.drop_step", **NO_TIMEOUT)


def test_fork():
    """The child has no thread of the parent's, and waits and fails by itself."""
    run_program("forks.before_and_after_the_first_step")


def test_forks_while_steps_are_under_way():
    """MXNet ends the threads of custom operators before the operations that call them."""
    run_program("forks.while_steps_are_under_way", GLUON_SYNCBN_TIMEOUT="20")


def test_workers_of_a_data_loader():
    run_program("forks.workers_of_a_data_loader")
