"""horovodrun, which kills processes that ignore SIGTERM after SYNCBN_TEST_PATIENCE instead of 5 s.

multiprocessing imports this file in the processes that kill.
"""

from __future__ import annotations

import os

from horovod.runner.common.util import safe_shell_exec
from horovod.runner.launch import run_commandline

safe_shell_exec.GRACEFUL_TERMINATION_TIME_S = float(os.environ["SYNCBN_TEST_PATIENCE"])

if __name__ == "__main__":
    run_commandline()
