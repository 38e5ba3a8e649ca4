"""The names of environment variables, and those that switch something on or off."""

from __future__ import annotations

import os
import warnings

_PREFIX = "GLUON_SYNCBN_"
# docs/api.md says what these do.
OF_USERS = (
    "GLUON_SYNCBN_CPU_CONTEXTS",
    "GLUON_SYNCBN_ISA",
    "GLUON_SYNCBN_NOTEBOOK",
    "GLUON_SYNCBN_NVRTC",
    "GLUON_SYNCBN_OPENBLAS",
    "GLUON_SYNCBN_TIMEOUT",
)
# Those of tests, builds and ``gluon-syncbn run``.
OF_OTHERS = (
    "GLUON_SYNCBN_LIBRARY",
    "GLUON_SYNCBN_MXNET",
    "GLUON_SYNCBN_RUN",
    "GLUON_SYNCBN_TEST_DEVICE",
    "GLUON_SYNCBN_TEST_ELEMENTS",
    "GLUON_SYNCBN_WITHOUT_LIBRARY",
)


def switch(name: str) -> bool | None:
    """Return what an environment variable says: 1 or 0, or None if it is empty or not set."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise ImportError(f"environment variable {name}={value!r} should be 0 or 1")
    return value == "1" if value else None


def warn_of_unknown() -> None:
    """Warn of variables that have the prefix of this package, and no effect."""
    if "GLUON_SYNCBN_RUN" in os.environ:  # the command has warned
        return
    for name in sorted(os.environ):
        if not name.startswith(_PREFIX) or name in (*OF_USERS, *OF_OTHERS):
            continue
        warnings.warn(
            f"environment variable {name} is unknown. Known are {', '.join(OF_USERS)}",
            UserWarning,
            stacklevel=3,
        )
