"""The block behaves as BatchNorm does wherever devices do not matter."""

from __future__ import annotations

import copy
import inspect
import pickle

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import contrib, nn

from tests.conftest import contexts


def test_accepts_everything_that_mxnets_layer_accepts():
    theirs = inspect.signature(contrib.nn.SyncBatchNorm.__init__).parameters
    ours = inspect.signature(gluon_syncbn.SyncBatchNorm.__init__).parameters
    names = list(theirs)
    assert list(ours)[: len(names) - 1] == names[:-1], "same order, up to **kwargs"
    for name in names:
        assert ours[name].default == theirs[name].default
    layer = gluon_syncbn.SyncBatchNorm(
        in_channels=4,
        num_devices=2,
        momentum=0.8,
        epsilon=1e-4,
        center=False,
        scale=False,
        use_global_stats=True,
        beta_initializer="zeros",
        gamma_initializer="ones",
        running_mean_initializer="zeros",
        running_variance_initializer="ones",
        prefix="bn_",
    )
    assert isinstance(layer, nn.BatchNorm)
    assert layer.gamma.grad_req == "null"
    assert layer.beta.grad_req == "null"
    assert layer.prefix == "bn_"
    assert "momentum=0.8" in repr(layer)
    assert "num_devices=2" in repr(layer)


def test_checkpoints_go_both_ways(tmp_path):
    plain = nn.BatchNorm(in_channels=3)
    ours = gluon_syncbn.SyncBatchNorm(in_channels=3)
    for layer in (plain, ours):
        layer.initialize(mx.init.Uniform(1))
    plain.running_mean.set_data(mx.nd.array([1, 2, 3]))
    assert set(plain._collect_params_with_prefix()) == set(ours._collect_params_with_prefix())
    plain.save_parameters(str(tmp_path / "plain.params"))
    ours.load_parameters(str(tmp_path / "plain.params"))
    x = mx.nd.random.normal(shape=(2, 3, 4))
    np.testing.assert_allclose(ours(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
    ours.save_parameters(str(tmp_path / "ours.params"))
    plain.load_parameters(str(tmp_path / "ours.params"))


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": False},
        {"center": False},
        {"use_global_stats": True},
        {"axis": -1},
        {"epsilon": 0.1, "momentum": 0.5},
    ],
)
def test_one_device_equals_batch_norm(hybridize, train, options):
    # MXNet's on a CPU also where the other has a GPU: cuDNN divides running variances by n - 1.
    layers = {
        nn.BatchNorm(**options): mx.cpu(),
        gluon_syncbn.SyncBatchNorm(**options): contexts(1)[0],
    }
    x = mx.nd.random.normal(1, 2, shape=(4, 6, 5, 6))
    results = []
    for layer, ctx in layers.items():
        layer.initialize(ctx=ctx)
        if hybridize:
            layer.hybridize()
        data = x.copyto(ctx)
        data.attach_grad()
        for _ in range(2):
            with autograd.record(train_mode=train):
                out = layer(data)
            out.backward((x * x).as_in_context(ctx), train_mode=train)
        values = [out, data.grad, layer.running_mean.data(), layer.running_var.data()]
        values += [p.grad() for p in (layer.gamma, layer.beta) if p.grad_req != "null"]
        results.append([value.asnumpy() for value in values])
    for theirs, ours in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_keys_are_unique():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, prefix="same_")
    twin = gluon_syncbn.SyncBatchNorm(in_channels=3, prefix="same_")
    layer.initialize()
    copies = [twin, copy.deepcopy(layer)]
    keys = {layer.key, *(other.key for other in copies)}
    assert len(keys) == 3
    assert layer.key == layer.key
    assert all(key.startswith("same_") for key in keys)


def test_identities_do_not_survive_pickling():
    from gluon_syncbn.block import _Identity

    identity = _Identity("same_")
    assert pickle.loads(pickle.dumps(identity)).token != identity.token
    assert copy.copy(identity).token != identity.token


def test_copies_do_not_meet():
    """A copy in training on the same devices leaves the numbers of the original alone."""
    ctx = contexts(2)
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=ctx)
    twin = copy.deepcopy(layer)
    with autograd.record():
        first = layer(mx.nd.ones((2, 3), ctx=ctx[0]))
        others = [twin(mx.nd.full((2, 3), 100, ctx=c)) for c in ctx]
        second = layer(mx.nd.full((2, 3), 3, ctx=ctx[1]))
    expected = 1 / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(first.asnumpy(), -expected, rtol=1e-6)
    np.testing.assert_allclose(second.asnumpy(), expected, rtol=1e-6)
    for other in others:
        np.testing.assert_allclose(other.asnumpy(), 0, atol=1e-6)


def test_num_devices_follows_the_contexts():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    with pytest.raises(ValueError, match=r"syncbatchnorm\d+: num_devices=None.*not initialized"):
        layer(mx.sym.var("data"))
    for number in (2, 3, 1):
        layer.initialize(ctx=contexts(number), force_reinit=True)
        with autograd.record():
            outs = [layer(mx.nd.full((1, 3), i, ctx=c)) for i, c in enumerate(contexts(number))]
        total = sum(out.asnumpy() for out in outs)
        np.testing.assert_allclose(total, 0, atol=1e-6)


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "two"])
def test_num_devices_must_be_a_number_of_devices(number):
    with pytest.raises((ValueError, TypeError)):
        gluon_syncbn.SyncBatchNorm(num_devices=number)


def test_half_precision_keeps_parameters_in_single():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(2))
    layer.cast("float16")
    assert np.dtype(layer.gamma.dtype) == np.float32
    with autograd.record():
        outs = [
            layer(mx.nd.random.normal(shape=(2, 3, 4), ctx=c, dtype="float16")) for c in contexts(2)
        ]
    assert all(out.dtype == np.float16 for out in outs)
