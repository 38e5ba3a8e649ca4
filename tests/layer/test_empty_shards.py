"""A device without data takes part in a step with an empty shard."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from tests.conftest import contexts
from tests.support.either_mxnet import only_1
from tests.support.step import MODES, after, compare, expect, make_case, make_layer, train_step


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("numpy", [pytest.param(False, marks=only_1), True])
def test_the_last_batch_has_fewer_images_than_devices(numpy, mode):
    """mx.np arrays may be empty. mx.nd arrays may be too within mx.util.np_shape."""
    ctx, whole = contexts(3), make_case(np.random.default_rng(0), (3, 3, 4, 4), (1, 1, 1))
    with mx.util.np_shape(numpy), mx.util.np_array(numpy):
        layer = make_layer(whole, ctx, mode)
        trainer = gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.0})
        for sizes in ((1, 1, 1), (1, 1, 0), (1, 1, 1), (0, 2, 0)):
            case = make_case(np.random.default_rng(1), (sum(sizes), 3, 4, 4), sizes)
            case.running_mean, case.running_var = whole.running_mean, whole.running_var
            case.gamma, case.beta = whole.gamma, whole.beta
            with mx.util.np_shape(numpy or 0 in sizes):
                expected = expect(case)
                compare(train_step(layer, case, ctx), expected, 1e-5)
                trainer.step(len(case.x))
            whole = after(whole, expected)
    assert gluon_syncbn.check_in_sync(layer) == {}
