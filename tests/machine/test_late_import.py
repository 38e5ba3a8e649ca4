"""Operators that ran before the import, as in a notebook, are noticed at the import."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

CONVOLUTION = """
x, w = mx.nd.ones((1, 16, 8, 8)), mx.nd.ones((16, 16, 3, 3))
mx.nd.Convolution(x, w, no_bias=True, num_filter=16, kernel=(3, 3)).wait_to_read()
"""


@pytest.mark.parametrize(
    ("before", "setting", "warns"),
    [
        (CONVOLUTION, {}, True),
        ("(mx.nd.ones((2,)) + 1).wait_to_read()", {}, None),
        ("mx.nd.array([1])", {}, False),
        ("", {}, False),
        (CONVOLUTION, {"MXNET_MKLDNN_ENABLED": "0"}, False),
        (CONVOLUTION, {"MXNET_MKLDNN_ENABLED": "1"}, False),  # as the user wants it
    ],
)
def test_late_import(before, setting, warns):
    """The warning comes if and only if the settings are not in effect."""
    program = (
        f"import warnings, mxnet as mx\n{before}\n"
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import gluon_syncbn
late = ["Restart Python" in str(w.message) for w in caught if w.category is UserWarning]
print(any(late), gluon_syncbn.cpu_contexts.find_problem(several=False) is not None)
"""
    )
    warned, refused = run_python(program, **setting).stdout.split()
    assert warned == (refused if warns is None else str(warns))
