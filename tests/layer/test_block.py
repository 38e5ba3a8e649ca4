"""The block behaves as BatchNorm does wherever devices do not matter."""

from __future__ import annotations

import copy
import inspect

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2, PLAIN_NORMS
from mxnet import autograd
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import nd, only_1
from tests.support.oracle import normalize
from tests.support.step import MODES, check_step, make_case, set_values


def test_accepts_everything_that_mxnets_layer_accepts():
    theirs = inspect.signature(PLAIN_NORMS[1].__init__).parameters
    ours = inspect.signature(gluon_syncbn.SyncBatchNorm.__init__).parameters
    names = list(theirs)
    assert list(ours)[: len(names) - 1] == names[:-1], "same order, up to **kwargs"
    for name in names[:-1]:
        assert ours[name].default == theirs[name].default
    options = {"num_devices": 2, "momentum": 0.8, "center": False, "scale": False}
    layer = gluon_syncbn.SyncBatchNorm(prefix="bn_", **options)
    assert isinstance(layer, nn.BatchNorm)
    assert layer.gamma.grad_req == "null"
    assert layer.beta.grad_req == "null"
    assert layer.prefix == "bn_"
    assert "momentum=0.8" in repr(layer)
    assert "num_devices=2" in repr(layer)


def test_a_misspelt_argument_is_an_error_for_type_checkers_too():
    parameters = inspect.signature(gluon_syncbn.SyncBatchNorm).parameters.values()
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters)
    with pytest.raises(TypeError, match="momentun"):
        gluon_syncbn.SyncBatchNorm(momentun=0.9)


@only_1
def test_prefix_and_params_are_those_of_blocks():
    first = gluon_syncbn.SyncBatchNorm(in_channels=3, prefix="shared_")
    second = gluon_syncbn.SyncBatchNorm(in_channels=3, prefix="other_", params=first.params)
    assert second.gamma is first.gamma


class ByPosition(gluon_syncbn.SyncBatchNorm):
    """With the signature of BatchNorm."""

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        return super().hybrid_forward(F, x, gamma, beta, running_mean, running_var)


class ByName(gluon_syncbn.SyncBatchNorm):
    def hybrid_forward(self, F, x, shortcut=None, **parameters):
        return super().hybrid_forward(F, x, shortcut=shortcut, **parameters)


class AllByPosition(gluon_syncbn.SyncBatchNorm):
    def hybrid_forward(self, F, x, *inputs, gamma, beta, running_mean, running_var, **count):
        parameters = (gamma, beta, running_mean, running_var)
        return super().hybrid_forward(F, x, *inputs, *parameters, *count.values())


@only_1
@pytest.mark.parametrize("mode", ["imperative", "hybridized"])
@pytest.mark.parametrize(
    ("kind", "momentum", "with_shortcut"),
    [
        (ByPosition, 0.9, False),
        (ByName, 0.9, True),
        (ByName, None, False),
        (AllByPosition, 0.9, True),
        (AllByPosition, None, False),
        (AllByPosition, None, True),
    ],
)
def test_subclasses_that_call_hybrid_forward(kind, momentum, with_shortcut, mode):
    ctx = contexts(2)
    case = make_case(np.random.default_rng(0), (5, 3, 4), (2, 3), momentum=momentum)
    if with_shortcut:
        case.shortcut = case.dy[::-1].copy()
    layer = kind(in_channels=3, momentum=momentum)
    layer.initialize(ctx=ctx)
    set_values(layer, case)
    layer.hybridize(**MODES[mode])
    check_step(layer, case, ctx)


@pytest.mark.parametrize("hybridize", [False, True])
def test_gradient_of_inference(hybridize):
    """BatchNorm gives that of training if backward() is called without train_mode=False."""
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, epsilon=0.5)
    layer.initialize(ctx=contexts(1))
    layer.running_var.set_data(nd.array([0.5, 3.5, 8.5]))
    layer.hybridize(hybridize)
    x = nd.random.normal(shape=(4, 3, 2), ctx=contexts(1)[0])
    x.attach_grad()
    with autograd.record(train_mode=False):
        out = layer(x)
    out.backward()
    expected = np.broadcast_to([[[1], [1 / 2], [1 / 3]]], x.shape)
    np.testing.assert_allclose(x.grad.asnumpy(), expected, rtol=1e-6)


def test_keys_are_unique():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, prefix="same_")
    twin = gluon_syncbn.SyncBatchNorm(in_channels=3, prefix="same_")
    layer.initialize()
    copies = [twin, copy.deepcopy(layer)]
    keys = {layer.key, *(other.key for other in copies)}
    assert len(keys) == 3
    assert layer.key == layer.key
    assert all(key.startswith("same_") for key in keys)


NO_NUMBERS = [[mx.cpu(0)], mx.cpu(0), "2", 2j, np.ones(2), float("inf"), float("nan"), True]


@pytest.mark.parametrize(
    ("name", "expected", "values"),
    [
        ("num_devices", "a whole number of at least 0, or None", [-1, 1.5, False, *NO_NUMBERS]),
        ("sync_group_size", "a whole number of at least 1, or None", [0, -1, 1.5, *NO_NUMBERS]),
        ("in_channels", "a whole number of at least 0", [None, -1, 1.5, *NO_NUMBERS]),
        ("axis", "a whole number", [None, 1.5, *NO_NUMBERS]),
        ("epsilon", "a number of at least 0", [None, -1, *NO_NUMBERS]),
        ("use_global_stats", "True or False", [None, -1, 2, "True", np.ones(2), [mx.cpu(0)]]),
        ("momentum", "a number from 0 to 1, or None", [-1, 1.5, 10**400, *NO_NUMBERS]),
        ("alpha", "a number of at least 0", [-1, 10**400, *NO_NUMBERS]),
        ("activation", "one of 'relu', 'leaky_relu', 'elu' or None", [0, "gelu", *NO_NUMBERS]),
    ],
)
def test_arguments_that_are_refused(name, expected, values):
    for value in values:
        arguments = {"activation": "elu", name: value}
        with pytest.raises(ValueError, match=r"^syncbatchnorm\d+: ") as caught:
            gluon_syncbn.SyncBatchNorm(**arguments)
        assert f": {name}={value!r} should be {expected}" in str(caught.value)


def test_the_axis_stays():
    layer = gluon_syncbn.SyncBatchNorm(axis=-1, prefix="bn_")
    with pytest.raises(ValueError, match=r"^bn: axis=1 should be -1, which cannot change: make a"):
        layer.axis = 1
    layer.axis = -1  # as a subclass may
    assert layer.axis == -1


NUMBERS = ("num_devices", "sync_group_size", "in_channels", "axis", "epsilon", "momentum")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        *(  # of any type, as is what they become in the operator's attributes
            ({name: kind(1) for name in NUMBERS}, [[-(0.5**0.5)], [0.5**0.5]])
            for kind in (int, float, np.int64, np.float32)
        ),
        # Programs give the number of GPUs, and train on the CPU where there is none.
        ({"num_devices": 0, "epsilon": 0}, [[-1], [1]]),
        # A frozen layer trains on any number of contexts.
        ({"num_devices": 2, "epsilon": 0, "use_global_stats": True}, [[1], [3]]),
    ],
)
def test_arguments_on_one_context(options, expected):
    layer = gluon_syncbn.SyncBatchNorm(**options)
    layer.initialize(ctx=contexts(1))
    layer.hybridize()
    with autograd.record():
        out = layer(nd.array([[1], [3]], ctx=contexts(1)[0]))
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize(
    ("arguments", "shape", "message"),
    [
        ({}, (3,), r"data has shape \(3,\) where 2 to 5 dimensions are expected"),
        ({"in_channels": 3}, (3,), r"data has shape \(3,\) where 2 to 5 dimensions are expected"),
        (
            {},
            (1, 2, 1, 1, 1, 1),
            r"data has shape \(1, 2, 1, 1, 1, 1\) where 2 to 5 dimensions are expected",
        ),
        ({"axis": 3}, (2, 3, 4), "attribute axis=3 should be from -3 to 2 for data of 3 dim"),
        (
            {"in_channels": 4},
            (2, 3, 4),
            r"gamma has shape \(4,\) where \(3,\) is expected, one for each channel of data of "
            r"shape \(2, 3, 4\) along axis 1",
        ),
    ],
)
def test_data_that_does_not_fit(arguments, shape, message, hybridize):
    layer = gluon_syncbn.SyncBatchNorm(prefix="stage1_", **arguments)
    layer.initialize(ctx=contexts(1))
    layer.hybridize(hybridize)
    with pytest.raises((ValueError, mx.base.MXNetError), match=f"stage1.*: {message}"):
        layer(nd.ones(shape, ctx=contexts(1)[0]))


@pytest.mark.skipif(not IS_2, reason="an error in MXNet 1.9.1, with BatchNorm too")
def test_a_layer_without_gradients_in_front():
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, scale=False, center=False, momentum=0)
    layer.initialize(ctx=contexts(2))
    values = np.random.default_rng(0).normal(2, 3, (2, 4, 3))
    for value in (0, 1):
        layer.beta.set_data(nd.full(3, value))
        with autograd.record():
            outs = [layer(nd.array(x, ctx=c)) for x, c in zip(values, contexts(2))]
        autograd.backward(outs)
        whole = values.reshape(-1, 3)
        found = np.concatenate([out.asnumpy() for out in outs])
        np.testing.assert_allclose(found, normalize(whole) + value, rtol=1e-4, atol=1e-5)
        assert layer.beta.data(contexts(1)[0]).asnumpy().tolist() == [value] * 3
    np.testing.assert_allclose(layer.running_mean.data().asnumpy(), whole.mean(0), rtol=1e-5)
