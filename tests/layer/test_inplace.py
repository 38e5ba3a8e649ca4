"""What a layer that works in place refuses. test_parity.py has its numbers."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest

from tests.conftest import contexts
from tests.support.either_mxnet import nd, only_1
from tests.support.step import check_step, make_case, make_layer, run, set_values


def test_a_small_gamma():
    ctx = contexts(2)
    case = make_case(np.random.default_rng(0), (8, 3, 9), (4, 4), inplace=True)
    case.gamma[:], case.beta[:] = (1, 2e-4, 1), (5, 1, 0)
    layer = make_layer(case, ctx, prefix="small_")
    run(layer, case, ctx)
    message = r"SyncBatchNorm 'small'.* channel 1 has gamma .* and beta .* should be above"
    with pytest.raises(mx.base.MXNetError, match=message):
        mx.nd.waitall()
    gluon_syncbn.drop_step()
    out = layer(nd.array(case.x[:4], ctx=ctx[0]))
    assert np.isfinite(out.asnumpy()).all(), "inference needs no inverse"
    case.gamma[1] = -3e-4
    set_values(layer, case)
    # In place, the rounding of the output is in all gradients, and grows by |beta / gamma|.
    check_step(layer, case, ctx, 1e-3)


@only_1
def test_plain_operators_have_no_such_attribute():
    symbol = gluon_syncbn.SyncBatchNorm(num_devices=1, inplace=True)(mx.sym.var("data"))
    assert '"inplace": "True"' in symbol.tojson()
    assert "inplace" not in gluon_syncbn.to_batchnorm(symbol).tojson()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"act_type": "relu"}, "inplace=True takes an activation that can be"),
        ({"act_type": "elu", "slope": 0}, "inplace=True takes an activation that can be"),
        ({"shortcut": True}, "inplace=True and shortcut=True exclude"),
    ],
)
def test_nodes_that_do_not_invert(attributes, message):
    with pytest.raises(mx.base.MXNetError, match=message):
        mx.sym.Custom(mx.sym.var("x"), op_type="SyncBatchNorm", inplace=True, **attributes)


def test_no_shortcut():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, inplace=True)
    layer.initialize()
    x = nd.ones((2, 3, 4))
    with pytest.raises(ValueError, match=r"inplace=True and a shortcut exclude each other"):
        layer(x, x)
