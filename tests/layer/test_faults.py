"""Devices that do not come, fail, or do not fit together: what each is told, and what comes next.

tests/native/sync/test_faults.cc has more of them, and the likely causes in full.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any, Callable

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.library import library_path
from mxnet import autograd

from tests.conftest import DEVICE, contexts
from tests.support.either_mxnet import error_of, nd, reset_ctx
from tests.support.oracle import normalize
from tests.support.step import MODES, check_step, make_case, make_layer

FAULTS = []
HYBRIDIZED = ("hybridized", "static_alloc", "static_shape")
PAGE = library_path().with_name("docs") / "troubleshooting.md"
# In messages "..." is any text.
NORM = "SyncBatchNorm 'norm'"
AGAIN = (
    f"{NORM}... forward: an earlier step has failed, ..., or call gluon_syncbn.drop_step(), which "
    f"takes this error. It was: {NORM}..."
)
NEVER_CALLED = f"""{NORM} round 0 forward waited ... s for all of 2 devices (num_devices=2).
Came: cpu(0) (1 training forward). Missing: cpu(1) (never called in training).
The layer was made for cpu(0), cpu(1).
Likely: the loop reads a result of one device (asnumpy, ... call hybridize() again).
All causes: {PAGE if PAGE.exists() else "docs/troubleshooting.md of the project"}, ..."""
LEFT_OUT = f"""{NORM} round 1 forward waited ... s for all of 2 devices (num_devices=2).
Came: cpu(0) (2 training forwards). Missing: cpu(1) (1 training forward).
Likely: the loop reads ...; or a missing device got no data this step ..."""
OF_FAILED = f"{NORM}: backward of a forward pass that failed: "
DIFFER = f"{NORM} round ... forward: devices cpu(...) and cpu(...) differ: "
TWICE = "a network hybridized with static_shape=True was called twice on cpu(...) before backward; "
GRADIENTS = [
    f"the gradient of the output is {each} but the output is float32 of shape (2, 3, 4)"
    for each in ("float64 of shape (2, 3, 4)", "float32 of shape (2, 4, 3)")
]


def fault(
    *errors: str,
    modes: tuple[str, ...] = tuple(MODES),
    number: int = 2,
    then: tuple[str, ...] = (AGAIN, AGAIN),
    **options: Any,
) -> Callable:
    """A generator whose arrays are read at once, and have these errors; `then` the next step."""

    def add(acts: Callable[[Any], Iterator]) -> Callable:
        for mode in modes:
            name = f"{acts.__name__}-{mode}"
            FAULTS.append(pytest.param(acts, errors, then, number, options, mode, id=name))
        return acts

    return add


def shard(device: int, dtype: str = "float32") -> Any:
    values = np.random.default_rng(device).standard_normal((2, 3, 4))
    x = nd.array(values, ctx=mx.Context(DEVICE, device), dtype=dtype)
    x.attach_grad()
    return x


def forward(layer: Any, *xs: Any) -> list:
    with autograd.record():
        return [layer(x) for x in xs]


def step(layer: Any) -> list:
    """A step without faults. A graph keeps its calls known, the result those without a graph."""
    outs = forward(layer, shard(0), shard(1))
    autograd.backward(outs, retain_graph=True)
    mx.nd.waitall()
    gluon_syncbn.set_timeout(0.3)
    return [] if layer._active else outs


@fault(NEVER_CALLED, OF_FAILED + NEVER_CALLED)
def a_device_is_never_called(layer):
    gluon_syncbn.set_timeout(0.3)
    x = shard(0)
    (out,) = forward(layer, x)
    yield out
    out.backward()
    yield x.grad


@fault(LEFT_OUT, OF_FAILED + LEFT_OUT)
def a_device_is_left_out_of_a_step(layer):
    _kept = step(layer)
    yield from a_device_is_never_called(layer)


class _Late(mx.operator.CustomOp):
    ready = threading.Event()

    def forward(self, is_train, req, in_data, out_data, aux):
        self.ready.wait()
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("late")
class _LateProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return _Late()


@fault(LEFT_OUT, LEFT_OUT, modes=("imperative", "hybridized", "static_alloc"))
def the_input_of_a_call_comes_too_late(layer):
    _kept = step(layer)
    _Late.ready.clear()
    (late,) = forward(layer, nd.Custom(shard(1), op_type="late"))
    yield from forward(layer, shard(0))
    _Late.ready.set()
    yield late


@fault(
    f"""{NORM} round ... backward waited ... s for all of 2 devices (num_devices=2).
Came: cpu(0). Missing: cpu(1).
Likely: backward was called for some devices only (give the losses of all devices to autograd..."""
)
def a_device_is_left_out_of_backward(layer):
    step(layer)
    gluon_syncbn.set_timeout(60)
    xs = [shard(0), shard(1)]
    outs = forward(layer, *xs)
    mx.nd.waitall()
    gluon_syncbn.set_timeout(0.3)
    outs[0].backward()
    yield xs[0].grad


@fault(
    f"""{NORM} round 1 forward waited ... s for all of 2 devices (num_devices=2).
Came: cpu(0) (2 training forwards). Missing: cpu(1) (1 training forward, then 1 in inference mode).
Called in inference mode, without autograd.record() or train_mode: cpu(1); all devices should ..."""
)
def a_device_is_in_inference_mode(layer):
    _kept = step(layer)
    (out,) = forward(layer, shard(0))
    assert np.isfinite(layer(shard(1)).asnumpy()).all()
    yield out


@fault(
    *[""] * 2,
    f"""{NORM} group 1 of 2 (device ids 2, 3) round 0 forward waited ... (sync_group_size=2).
Came: cpu(2) (1 training forward). Missing: cpu(3) (never called in training).
The layer was made for cpu(2), cpu(3).
Likely: ...""",
    number=4,
    then=("", "", AGAIN, AGAIN),
    sync_group_size=2,
)
def a_device_is_left_out_of_its_group(layer):
    outs = forward(layer, shard(0), shard(1))
    mx.nd.waitall()
    gluon_syncbn.set_timeout(0.3)
    yield from outs + forward(layer, shard(2))


@fault(
    *[DIFFER + "eps ...0.5..."] * 2,
    *[DIFFER + "momentum ...0.25..."] * 2,
    *[DIFFER + "dtype ...float64..."] * 2,
    modes=("imperative",),
    then=(),
)
def devices_differ(layer):
    for change in (
        lambda: setattr(layer, "epsilon", 0.5),
        lambda: setattr(layer, "momentum", 0.25),
        lambda: layer.cast("float64"),
    ):
        outs = forward(layer, shard(0))
        change()
        yield from outs + forward(layer, shard(1, np.dtype(layer.gamma.dtype).name))
        gluon_syncbn.drop_step()


@fault(f"{NORM}: {TWICE}...", f"{NORM}...{TWICE}...", modes=("static_shape",))
def a_device_fails_before_its_peer_comes(layer):
    autograd.backward(forward(layer, shard(0), shard(1)))
    _kept = forward(layer, shard(0), shard(1))
    mx.nd.waitall()
    yield from forward(layer, shard(0))
    yield from forward(layer, shard(1))


@fault(*[f"{NORM}: {each}" for each in GRADIENTS], modes=("imperative",), number=1, then=())
@fault(
    f"{NORM} round 0 backward: failed on cpu(1): {GRADIENTS[0]}",
    f"{NORM}: {GRADIENTS[0]}",
    f"{NORM} round ... backward: failed on cpu(1): {GRADIENTS[1]}",
    f"{NORM}: {GRADIENTS[1]}",
    modes=("imperative",),
    then=(),
)
def the_gradient_of_an_output_does_not_fit(layer):
    ctx = layer.gamma.list_ctx()
    for wrong in (nd.ones((2, 3, 4), ctx[-1], "float64"), nd.ones((2, 4, 3), ctx[-1])):
        xs = [shard(i) for i in range(len(ctx))]
        heads = [*[nd.ones((2, 3, 4), ctx=c) for c in ctx[:-1]], wrong]
        try:
            autograd.backward(forward(layer, *xs), heads)
        except ValueError as error:  # later versions of MXNet 2 compare the shapes themselves
            if "does not match output shape" not in str(error):
                raise
            pytest.skip(str(error))
        yield from [x.grad for x in xs]
        gluon_syncbn.drop_step()


@fault(
    *[""] * 2,
    f"{NORM} synchronizes cpu(0), cpu(1) (num_devices=2) and was called on cpu(2) as well. ..."
    "After you move a hybridized network to other contexts, call hybridize() again.",
    modes=HYBRIDIZED,
    then=(),
)
def a_hybridized_layer_moves_to_more_devices(layer):
    forward(layer, shard(0), shard(1))
    reset_ctx(layer, contexts(3))
    outs = forward(layer, shard(0), shard(1))
    mx.nd.waitall()
    yield from outs + forward(layer, shard(2))


@fault(NEVER_CALLED, modes=HYBRIDIZED, then=("",))
def a_hybridized_layer_moves_to_fewer_devices(layer):
    layer(shard(0))
    reset_ctx(layer, contexts(1))
    gluon_syncbn.set_timeout(0.3)
    yield from forward(layer, shard(0))
    layer.hybridize()


@pytest.mark.parametrize(("acts", "errors", "then", "number", "options", "mode"), FAULTS)
def test_faults(acts, errors, then, number, options, mode, capfd):
    def case(number: int) -> Any:
        rng = np.random.default_rng(number)
        return make_case(rng, (2 * number, 3, 4), (2,) * number, **options)

    layer = make_layer(case(number), contexts(number), mode, prefix="norm_")
    found = [error_of(array.asnumpy) for array in acts(layer)]
    gluon_syncbn.set_timeout(60)
    found += [error_of(out.asnumpy) for out in forward(layer, *map(shard, range(len(then))))]
    assert len(found) == len(errors) + len(then)
    for text, error in zip(found, (*errors, *then)):
        pattern = re.escape(error.replace("cpu(", f"{DEVICE}(")).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, text.partition("Error: ")[2], re.DOTALL), text
    for _ in then[:2]:
        check_step(layer, case(len(then)), contexts(len(then)))
    # A warning came before a device had waited for too long, and once.
    pattern = rf"warning: {NORM} .* has waited .* and fails at 0.3 s"
    waited = [each for each in {*errors} if re.match(rf"{NORM} .* waited", each)]
    assert len(re.findall(pattern, capfd.readouterr().err)) == len(waited)


def test_devices_that_fail_at_the_same_time():
    """MXNet, which keeps all errors in a list without a lock, would crash."""
    ctx = contexts(4)
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=ctx)
    for _ in range(50):
        outs = forward(layer, *map(shard, range(4)))
        heads = [nd.ones((2, 3, 4), ctx=c) for c in ctx[:3]]
        autograd.backward(outs, [*heads, nd.ones((2, 3, 4), ctx=ctx[3], dtype="float64")])
        for consequence in [gradient * 2 for gradient in layer.gamma.list_grad()]:
            assert error_of(consequence.asnumpy)
        gluon_syncbn.drop_step()


def test_a_static_shape_network_called_twice_in_its_first_step():
    """MXNet makes operators for both calls then, in the order of the calls."""
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3)
    layer.initialize(ctx=contexts(2))
    layer.hybridize(**MODES["static_shape"])
    calls = np.random.default_rng(0).standard_normal((2, 2, 2, 3, 4))  # each on two devices
    outs = [forward(layer, *[nd.array(x, c) for x, c in zip(xs, contexts(2))]) for xs in calls]
    autograd.backward([*outs[0], *outs[1]])
    for xs, ys in zip(calls, outs):
        found = np.concatenate([y.asnumpy() for y in ys])
        np.testing.assert_allclose(found, normalize(np.concatenate(xs)), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": None},
        {"activation": "leaky_relu", "inplace": True},
        # 1 / sqrt(variance + epsilon) is infinite.
        {"epsilon": 0, "running_variance_initializer": "zeros", "use_global_stats": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_batch_without_elements_moves_no_average(number, options):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, **options)
    layer.initialize(ctx=contexts(number))
    before = {name: each.data().asnumpy() for name, each in layer.collect_params().items()}
    with mx.util.np_shape(True):
        outs = forward(layer, *[nd.zeros((0, 3, 4), ctx=c) for c in contexts(number)])
        autograd.backward(outs)
        assert [out.shape for out in outs] == [(0, 3, 4)] * number
        mx.nd.waitall()
    for name, parameter in layer.collect_params().items():
        for array in parameter.list_data():
            np.testing.assert_array_equal(array.asnumpy(), before[name])
        for gradient in parameter.list_grad() if parameter.grad_req != "null" else ():
            np.testing.assert_array_equal(gradient.asnumpy(), 0)


NUMBERS = "num_devices={0}, but the parameters live on 3 contexts: cpu(0), cpu(1), cpu(2). \
Initialize the network on {0} contexts, or leave num_devices out"
SAME = "the parameters live on cpu(0), cpu(0), where each context should be there once. \
Initialize the network on different contexts"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("options", "ctx", "message"),
    [
        ({"num_devices": 0}, contexts(3), NUMBERS.format(1)),
        ({"num_devices": 2}, contexts(3), NUMBERS.format(2)),
        ({"num_devices": 4}, contexts(3), NUMBERS.format(4)),
        ({"sync_group_size": 3}, contexts(4), "sync_group_size=3 should divide num_devices=4"),
        ({}, contexts(1) * 2, SAME),
    ],
)
def test_contexts_that_do_not_fit(options, ctx, message, mode):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, **options)
    layer.initialize(ctx=ctx)
    layer.hybridize(**MODES[mode])
    for is_train in (True, False):
        with pytest.raises(ValueError) as error, autograd.record(is_train):
            layer(shard(0))
        assert str(error.value) == f"{layer.name}: " + message.replace("cpu(", f"{DEVICE}(")
    reset_ctx(layer, contexts(1))
    assert layer(shard(0)).shape == (2, 3, 4), "inference may run on one context"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "soon", "5", None])
def test_timeouts_that_make_no_sense(seconds):
    with pytest.raises(ValueError, match=f"seconds={seconds!r} should be a finite number"):
        gluon_syncbn.set_timeout(seconds)
    assert gluon_syncbn.get_timeout() == 60


@pytest.mark.parametrize(
    ("mode", "dtype"), list(zip(MODES, ["float16", "float32", "float64", "float32"]))
)
def test_a_program_that_goes_on_after_errors_trains_nan_or_nothing(mode, dtype):
    """MXNet forgets an error that was read, and computes with the arrays of the failed pass.

    No running average moves, and no batch counts. The next step repeats the last error, and
    restored weights train as before.
    """
    layer = gluon_syncbn.SyncBatchNorm(in_channels=3, momentum=None)
    layer.initialize(ctx=contexts(2))
    layer.cast(dtype)
    layer.hybridize(**MODES[mode])
    parameters = layer.collect_params()
    # The fake CUDA has the kernel with momentum, for both MXNets.
    trainer = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    before = {each: each.data().copy() for each in parameters.values()}

    def whole_step() -> list[np.ndarray]:
        outs = forward(layer, shard(0, dtype), shard(1, dtype))
        autograd.backward(outs)
        trainer.step(4)
        return [out.asnumpy() for out in outs]

    def restore() -> None:
        for parameter, values in before.items():
            parameter.set_data(values)

    expected = whole_step()
    for _ in range(3):
        restore()
        gluon_syncbn.set_timeout(0.2)
        outs = []
        for device in (0, 1):
            outs += forward(layer, shard(device, dtype))
            assert "forward" in error_of(outs[-1].asnumpy)
        with autograd.record():
            losses = [out * 2 for out in outs]
        autograd.backward(losses)
        gradients = [*layer.gamma.list_grad(), *layer.beta.list_grad()]
        for array in (*outs, *losses, *gradients):
            error_of(array.wait_to_read)  # which takes the error of a gradient
            assert np.isnan(array.asnumpy()).all()
        trainer.step(4)
        for parameter, values in before.items():
            for array in parameter.list_data():
                error_of(array.wait_to_read)
                is_trained = parameter.grad_req != "null" and np.isnan(array.asnumpy()).all()
                assert is_trained or (array.asnumpy() == values.asnumpy()).all(), parameter.name
        gluon_syncbn.set_timeout(60)
        assert "call gluon_syncbn.drop_step()" in error_of(whole_step)
        gluon_syncbn.drop_step()
        restore()
        np.testing.assert_allclose(whole_step(), expected, rtol=1e-5)
