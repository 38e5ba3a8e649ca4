"""Programs that start a process before anything imports mxnet, and only the process trains."""

import multiprocessing
import runpy
import subprocess
import sys
from pathlib import Path

CHILDREN = str(Path(__file__).with_name("children.py"))


def train():
    sys.argv.append("again")
    runpy.run_path(CHILDREN, run_name="__main__")


if sys.argv[1] == "command":
    subprocess.run([sys.executable, CHILDREN, "again"], check=True)
else:
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    assert child.exitcode == 0
