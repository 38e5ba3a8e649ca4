"""Devices that do not come, fail, or do not fit together are reported to all, and life goes on."""

from __future__ import annotations

import contextlib
import threading

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.library import library_path
from mxnet import gluon

from tests.conftest import DEVICE, contexts
from tests.support.either_mxnet import nd, only_1, reset_ctx
from tests.support.oracle import normalize
from tests.support.step import MODES


def make_layer(mode: str = "imperative", number: int = 2) -> gluon_syncbn.SyncBatchNorm:
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(number))
    layer.hybridize(**MODES[mode])
    return layer


def normal(shape, device: int) -> mx.nd.NDArray:
    values = np.random.default_rng(device).standard_normal(shape)
    return nd.array(values, ctx=mx.Context(DEVICE, device))


def forward(layer, devices, shape=(2, 3, 4)):
    """Training passes of these devices, without backward."""
    with mx.autograd.record():
        return [layer(normal(shape, i)) for i in devices]


def check_step(layer, devices) -> None:
    """A whole step works, and its numbers are those of all devices together."""
    gluon_syncbn.set_timeout(60)
    outs = forward(layer, devices, (2, 3))
    mx.autograd.backward(outs)
    found = np.concatenate([out.asnumpy() for out in outs])
    whole = np.concatenate([normal((2, 3), i).asnumpy() for i in devices])
    np.testing.assert_allclose(found, normalize(whole), rtol=1e-5, atol=1e-6)


def check_next_steps(layer, devices) -> None:
    """The next step repeats the error on all devices, and those after it work."""
    for out in forward(layer, devices, (2, 3)):
        assert "an earlier step has failed" in error_of(out.asnumpy)
    for _ in range(2):
        check_step(layer, devices)


def error_of(call) -> str:
    with pytest.raises(mx.base.MXNetError) as error:
        call()
    return str(error.value)


class Custom:
    """Direct calls of the operator under one key."""

    def __init__(self, key: str, **attributes) -> None:
        self.attributes = {"op_type": "SyncBatchNorm", "key": key, "num_devices": 2, **attributes}

    def __call__(self, device, channels=3, dtype="float32", **attributes):
        arrays = [nd.ones((2, channels), ctx=mx.Context(DEVICE, device), dtype=dtype)]
        arrays += [
            nd.ones((channels,), ctx=mx.Context(DEVICE, device), dtype=dtype) for _ in range(4)
        ]
        with mx.autograd.record():
            return nd.Custom(*arrays, **{**self.attributes, **attributes})


@pytest.mark.parametrize(("first", "known"), [(1, False), (0, True)])
@pytest.mark.parametrize("mode", MODES)
def test_a_device_that_never_calls(mode, first, known, capfd):
    layer = make_layer(mode)
    if known:
        check_step(layer, [0, 1])
        mx.nd.waitall()  # else its backward pass may wait for longer than the new timeout allows
    gluon_syncbn.set_timeout(0.3)
    (out,) = forward(layer, [0])
    message = error_of(out.asnumpy)
    # Nobody knows a device whose calls are all forgotten, as imperative ones are in time.
    missing = [f"Missing: {DEVICE}(1) (1 training forward)"] if known else []
    missing += (
        [f"Missing: {DEVICE}(1) (never called in training)"]
        if not known or mode == "imperative"
        else []
    )
    cause = "a missing device got no data this step" if known else "asnumpy"
    told = (f"'{layer.name}' round", "forward waited", "num_devices=2", f"Came: {DEVICE}(0)")
    page = library_path().with_name("docs") / "troubleshooting.md"
    causes = f"All causes: {page if page.exists() else 'docs/troubleshooting.md of the project'}, "
    for words in (*told, *([] if known and mode == "imperative" else [cause]), causes):
        assert words in message
    assert any(words in message for words in missing)
    # The warning came before, once.
    warnings = [line for line in capfd.readouterr().err.splitlines() if f"'{layer.name}'" in line]
    assert len(warnings) == 1
    for words in ("warning", "forward has waited", "fails at 0.3 s"):
        assert words in warnings[0]
    del out
    check_next_steps(layer, [first, 1 - first])


class _Late(mx.operator.CustomOp):
    ready = threading.Event()

    def forward(self, is_train, req, in_data, out_data, aux):
        self.ready.wait()
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("late")
class _LateProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return _Late()


@pytest.mark.parametrize("mode", ["imperative", "hybridized", "static_alloc"])
def test_a_call_that_comes_too_late_fails_at_once(mode):
    """It was made in time, but its input was not ready."""
    layer = make_layer(mode)
    check_step(layer, [0, 1])
    gluon_syncbn.set_timeout(0.3)
    _Late.ready.clear()
    x = nd.Custom(nd.ones((2, 3, 4), ctx=mx.Context(DEVICE, 1)), op_type="late")
    with mx.autograd.record():
        late = layer(x)
    (out,) = forward(layer, [0])
    message = error_of(out.asnumpy)
    gluon_syncbn.set_timeout(60)
    _Late.ready.set()
    assert error_of(late.asnumpy) == message
    del out, late
    check_next_steps(layer, [0, 1])


@pytest.mark.parametrize("mode", MODES)
def test_backward_on_one_device(mode):
    layer = make_layer(mode)
    outs = forward(layer, [0, 1])
    gluon_syncbn.set_timeout(0.3)
    x = nd.ones((2, 3, 4))
    x.attach_grad()
    with mx.autograd.record():
        outs = [layer(x), *forward(layer, [1])]
    outs[0].backward()
    message = error_of(x.grad.asnumpy)
    for words in (
        "backward waited",
        f"Came: {DEVICE}(0). Missing: {DEVICE}(1).",
        "autograd.backward",
    ):
        assert words in message
    del outs
    check_next_steps(layer, [0, 1])


@pytest.mark.parametrize("mode", MODES)
def test_training_on_one_device_and_inference_on_the_other(mode):
    layer = make_layer(mode)
    check_step(layer, [0, 1])
    gluon_syncbn.set_timeout(0.3)
    (out,) = forward(layer, [0])
    assert np.isfinite(layer(nd.ones((2, 3), ctx=mx.Context(DEVICE, 1))).asnumpy()).all()
    message = error_of(out.asnumpy)
    assert (
        f"Called in inference mode, without autograd.record() or train_mode: {DEVICE}(1)" in message
    )
    del out
    check_next_steps(layer, [0, 1])


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"dtype": "float64"}, "dtype float(32|64) and float(32|64)"),
        ({"eps": 0.5}, "eps 0[.][0-9]+ and 0[.][0-9]+"),
        ({"momentum": 0.25}, "momentum 0[.][0-9]+ and 0[.][0-9]+"),
    ],
)
def test_devices_that_differ(other, difference):
    custom = Custom(f"differs in {difference}")
    outs = [custom(0), custom(1, **other)]
    for out in outs:
        with pytest.raises(
            mx.base.MXNetError,
            match=rf"devices {DEVICE}\([01]\) and {DEVICE}\([01]\) differ: {difference}",
        ):
            out.asnumpy()
    mx.nd.waitall()
    gluon_syncbn.drop_step()
    outs = [custom(0), custom(1)]
    assert all(np.isfinite(out.asnumpy()).all() for out in outs)


def test_a_static_shape_network_called_twice_in_its_first_step():
    """MXNet makes operators for both calls then, in the order of the calls."""
    layer = make_layer("static_shape")
    calls = np.random.default_rng(0).standard_normal((2, 2, 2, 3, 4))  # each on two devices
    with mx.autograd.record():
        outs = [[layer(nd.array(x, ctx=c)) for x, c in zip(xs, contexts(2))] for xs in calls]
    mx.autograd.backward([*outs[0], *outs[1]])
    for xs, ys in zip(calls, outs):
        found = np.concatenate([y.asnumpy() for y in ys])
        np.testing.assert_allclose(found, normalize(np.concatenate(xs)), atol=1e-5)


def test_a_device_that_fails_fails_its_peer_at_once():
    """One whose static_shape network is called twice before backward, which is refused."""
    layer = make_layer("static_shape")
    check_step(layer, [0, 1])
    held = forward(layer, [0, 1], shape=(2, 3))
    mx.nd.waitall()
    calls = forward(layer, [0], shape=(2, 3))
    assert f"called twice on {DEVICE}(0)" in error_of(calls[0].asnumpy)
    with mx.autograd.record():
        calls += forward(layer, [1], shape=(2, 3))
    message = error_of(calls[1].asnumpy)
    assert f"called twice on {DEVICE}(" in message
    assert "waited" not in message
    del held, calls


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (nd.ones((2, 3, 4), dtype="float64"), "float64 of shape (2, 3, 4)"),
        (nd.ones((2, 3, 4), dtype="float16"), "float16 of shape (2, 3, 4)"),
        (nd.ones((2, 3, 3)), "float32 of shape (2, 3, 3)"),
        (nd.ones((2, 4, 3)), "float32 of shape (2, 4, 3)"),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_gradients_of_the_output_that_do_not_fit(number, wrong, words):
    layer = make_layer(number=number)
    xs = [normal((2, 3, 4), i) for i in range(number)]
    for x in xs:
        x.attach_grad()
    with mx.autograd.record():
        outs = [layer(x) for x in xs]
    heads = [nd.ones((2, 3, 4), ctx=mx.Context(DEVICE, i)) for i in range(number)]
    heads[-1] = wrong.as_in_context(mx.cpu(number - 1))
    try:
        mx.autograd.backward(outs, heads)
    except ValueError as error:  # later versions of MXNet 2 compare the shapes themselves
        if "does not match output shape" not in str(error):
            raise
        return
    for x in xs:
        message = error_of(x.grad.asnumpy)
        assert f"'{layer.name}'" in message
        assert f"the gradient of the output is {words}" in message
        assert "but the output is float32 of shape (2, 3, 4)" in message
    if number == 2:
        check_next_steps(layer, [0, 1])


def test_devices_that_fail_at_the_same_time():
    """MXNet, which keeps all errors in a list without a lock, would crash."""
    number, steps = 4, 50
    layer = make_layer(number=number)
    errors = []
    for _ in range(steps):
        with mx.autograd.record():
            outs = forward(layer, range(number))
        heads = [nd.ones(out.shape, ctx=out.context) for out in outs]
        heads[-1] = nd.ones(outs[-1].shape, ctx=outs[-1].context, dtype="float64")
        mx.autograd.backward(outs, heads)
        consequences = [gradient * 2 for gradient in layer.gamma.list_grad()]
        errors += [error_of(array.asnumpy) for array in consequences]
        gluon_syncbn.drop_step()
    assert len(errors) == number * steps
    check_step(layer, range(number))


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": None},
        {"activation": "leaky_relu"},
        {"inplace": True},
        # Where 1 / sqrt(variance + epsilon) is infinite.
        {"epsilon": 0, "running_variance_initializer": "zeros"},
        {"epsilon": 0, "running_variance_initializer": "zeros", "use_global_stats": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_batch_without_elements_moves_no_average(number, options):
    variance = 0 if "epsilon" in options else 1
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, **options)
    layer.initialize(ctx=contexts(number))
    with mx.util.np_shape(True):
        xs = [nd.zeros((0, 3, 4), ctx=mx.Context(DEVICE, i)) for i in range(number)]
        with mx.autograd.record():
            outs = [layer(x) for x in xs]
        mx.autograd.backward(outs)
        assert [out.shape for out in outs] == [(0, 3, 4)] * number
        mx.nd.waitall()
    for parameter, expected in (
        (layer.running_mean, 0),
        (layer.running_var, variance),
        (getattr(layer, "num_batches_tracked", None), 0),
    ):
        for array in parameter.list_data() if parameter else ():
            np.testing.assert_array_equal(array.asnumpy(), expected)
    for parameter in (layer.gamma, layer.beta):
        for gradient in parameter.list_grad():
            np.testing.assert_array_equal(gradient.asnumpy(), 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_another_number_of_devices_than_num_devices(number, mode):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=number)
    layer.initialize(ctx=contexts(3))
    layer.hybridize(**MODES[mode])
    message = f"num_devices={max(number, 1)}, but the parameters live on 3 contexts: .* Initialize"
    with pytest.raises(ValueError, match=message):
        forward(layer, [0])
    with pytest.raises(ValueError, match=message):
        layer(nd.ones((2, 3), ctx=contexts(1)[0]))
    served = gluon_syncbn.SyncBatchNorm(in_channels=3, num_devices=number)
    served.initialize(ctx=contexts(1))
    served.hybridize(**MODES[mode])
    assert served(nd.ones((2, 3), ctx=contexts(1)[0])).shape == (2, 3)


@pytest.mark.parametrize("mode", ["imperative", "hybridized"])
def test_one_context_twice(mode):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(1) * 2)
    layer.hybridize(**MODES[mode])
    with pytest.raises(
        ValueError, match=rf"live on {DEVICE}\(0\), {DEVICE}\(0\), where each context"
    ):
        forward(layer, [0, 0])


@pytest.mark.parametrize("mode", ["hybridized", "static_alloc", "static_shape"])
def test_a_hybridized_layer_that_moves_to_other_numbers_of_contexts(mode):
    """Its graph keeps the number; the messages say what to do."""
    layer = make_layer(mode)
    check_step(layer, [0, 1])
    reset_ctx(layer, contexts(3))
    outs = forward(layer, [0, 1])
    mx.nd.waitall()
    (third,) = forward(layer, [2])
    message = error_of(third.asnumpy)
    assert f"was called on {DEVICE}(2) as well" in message
    assert "hybridize()" in message
    assert all(np.isfinite(out.asnumpy()).all() for out in outs)
    layer = make_layer(mode)
    layer(nd.ones((2, 3), ctx=contexts(1)[0]))
    reset_ctx(layer, contexts(1))
    gluon_syncbn.set_timeout(0.3)
    message = error_of(forward(layer, [0])[0].asnumpy)
    assert f"The layer was made for {DEVICE}(0), {DEVICE}(1)." in message
    assert "call hybridize() again" in message
    layer.hybridize(**MODES[mode])
    check_step(layer, [0])


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "soon", "5", None])
def test_timeouts_that_make_no_sense(seconds):
    with pytest.raises(ValueError, match=f"seconds={seconds!r} should be a finite number"):
        gluon_syncbn.set_timeout(seconds)
    assert gluon_syncbn.get_timeout() == 60


def values_of(array) -> np.ndarray:
    """What the array holds, if it has an error too."""
    with contextlib.suppress(mx.base.MXNetError):
        array.wait_to_read()
    return array.asnumpy()


@pytest.mark.parametrize(
    ("mode", "dtype"), list(zip(MODES, ["float16", "float32", "float64", "float32"]))
)
def test_a_program_that_goes_on_after_an_error_trains_nan_or_nothing(mode, dtype):
    """MXNet forgets an error that was read, and computes with the arrays of the failed pass."""
    layer = make_layer(mode)
    layer.cast(dtype)
    parameters = layer.collect_params()
    before = {name: parameter.data().asnumpy() for name, parameter in parameters.items()}
    # The fake CUDA has the kernel with momentum, for both MXNets.
    options = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = mx.gluon.Trainer(parameters, "sgd", options)
    gluon_syncbn.set_timeout(0.2)
    outs = []
    with mx.autograd.record():
        for i in range(2):
            outs.append(layer(normal((2, 3, 4), i).astype(dtype)))
            assert "forward waited" in error_of(outs[-1].asnumpy)
        losses = [out * 2 for out in outs]
    for array in (*outs, *losses):
        assert np.isnan(array.asnumpy()).all()
    mx.autograd.backward(losses)
    for parameter in (layer.gamma, layer.beta):
        for gradient in parameter.list_grad():
            assert np.isnan(values_of(gradient)).all()
    trainer.step(4)
    for name, parameter in parameters.items():
        for array in parameter.list_data():
            values = values_of(array)
            is_trained = parameter.grad_req != "null" and np.isnan(values).all()
            assert is_trained or (values == before[name]).all(), name


@pytest.mark.skipif(DEVICE == "gpu", reason="the fake CUDA has no matrix products")
@pytest.mark.parametrize("mode", MODES)
def test_the_step_after_a_caught_error_repeats_it(mode):
    """Weights may be garbage then, without an error of MXNet. Restored ones train as before."""
    net = gluon.nn.HybridSequential()
    norm = gluon_syncbn.SyncBatchNorm(in_channels=3)
    net.add(gluon.nn.Dense(3, in_units=4, flatten=False), norm, gluon.nn.Dense(2, in_units=3))
    net.initialize(ctx=contexts(2))
    net.hybridize(**MODES[mode])
    parameters = net.collect_params()
    trainer = gluon.Trainer(parameters, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    weights = {each: each.data().copy() for each in parameters.values()}

    def call(device):
        with mx.autograd.record():
            return (net(normal((2, 4), device)) ** 2).sum()

    def whole_step():
        losses = [call(0), call(1)]
        mx.autograd.backward(losses)
        trainer.step(4)
        return [float(loss.asnumpy()) for loss in losses]

    expected = whole_step()
    for _ in range(8):
        gluon_syncbn.set_timeout(0.1)
        losses = []
        for device in (0, 1):
            losses.append(call(device))
            assert "forward" in error_of(losses[-1].asnumpy)
        with contextlib.suppress(mx.base.MXNetError):
            mx.autograd.backward(losses)
            trainer.step(4)
            mx.nd.waitall()
        gluon_syncbn.set_timeout(60)
        assert "call gluon_syncbn.drop_step()" in error_of(whole_step)
        gluon_syncbn.drop_step()
        for parameter, values in weights.items():
            parameter.set_data(values)
        np.testing.assert_allclose(whole_step(), expected, rtol=1e-5)


@only_1  # MXNet 2 has no such variable
@pytest.mark.parametrize("static", [False, True])
def test_backward_of_a_failed_forward_names_its_error(static, monkeypatch):
    """MXNet may keep one operator for many steps."""
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(1))
    if static:
        layer.hybridize(static_alloc=True, static_shape=True)
    x = nd.array([[1, 2, 3], [2, 4, 7], [9, 1, 0]], ctx=contexts(1)[0])
    x.attach_grad()
    with mx.autograd.record():
        y = layer(x)
    y.backward()
    mx.nd.waitall()
    monkeypatch.setenv("MXNET_BACKWARD_DO_MIRROR", "1")
    with mx.autograd.record():
        y = layer(x)
    with pytest.raises(mx.base.MXNetError, match="MXNET_BACKWARD_DO_MIRROR"):
        y.asnumpy()
    y.backward(x)
    with pytest.raises(mx.base.MXNetError, match=r"forward pass that failed: .*DO_MIRROR"):
        x.grad.asnumpy()
