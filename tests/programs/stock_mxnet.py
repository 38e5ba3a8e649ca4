"""MXNet alone runs a network that gluon_syncbn exported."""

from __future__ import annotations

import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import gluon


def compare(symbol_file: str, params_file: str, folder: str) -> None:
    """Give the network x.npy, and expect y.npy."""
    array = mx.np.array if mx.__version__.startswith("2.") else mx.nd.array
    net = gluon.SymbolBlock.imports(symbol_file, ["data"], params_file)
    out = net(array(np.load(Path(folder, "x.npy")))).asnumpy()
    np.testing.assert_allclose(out, np.load(Path(folder, "y.npy")), rtol=1e-4, atol=1e-5)
    assert "gluon_syncbn" not in sys.modules


if __name__ == "__main__":
    compare(*sys.argv[1:])
