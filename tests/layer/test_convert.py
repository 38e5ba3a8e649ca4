"""Networks made of plain layers become synchronized ones, and back, in place."""

from __future__ import annotations

import warnings

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import PLAIN_NORMS, children_of
from gluon_syncbn.naming import name_of
from gluon_syncbn.norms import norms_of
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import HybridBlock, nd, only_1, reset_ctx
from tests.support.networks import import_files, norm_layers, sequential, split
from tests.support.step import MODES, Case, compare, train, train_step


class Nested(HybridBlock):
    """Norm layers as attributes, in a Sequential, in a list registered by hand, and shared."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.BatchNorm(momentum=0.7, epsilon=1e-4)
            self.body = sequential(nn.Dense(4, flatten=False), nn.BatchNorm(axis=-1, scale=False))
            self.listed = [nn.BatchNorm(), PLAIN_NORMS[1](num_devices=1)]
            for index, layer in enumerate(self.listed):
                self.register_child(layer, f"listed{index}")
            self.again = self.first

    def hybrid_forward(self, F, x):
        x = self.again(self.body(self.first(x)))
        for layer in self.listed:
            x = layer(x)
        return x


def test_a_network_without_norms_is_a_warning():
    net = sequential(nn.Dense(2))
    with pytest.warns(UserWarning, match=f"^{name_of(net)} has no BatchNorm to convert$"):
        gluon_syncbn.convert_sync_batchnorm(net)
    net.add(nn.BatchNorm())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            gluon_syncbn.convert_sync_batchnorm(net)


class OperatorOfItsOwn(gluon.HybridBlock):
    """As programs have that search for architectures."""

    def __init__(self):
        super().__init__()
        for name in ("gamma", "beta", "running_mean", "running_var"):
            setattr(self, name, gluon.Parameter(name, shape=(4,)))


class MeanOfALayer(gluon.HybridBlock):
    """It has a norm, and keeps the running mean of it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm()
        self.mean = self.norm.running_mean


@pytest.mark.parametrize("layers", [[], [nn.BatchNorm], [MeanOfALayer]])
def test_blocks_with_operators_of_their_own_are_named(layers):
    net = sequential(OperatorOfItsOwn(), *(make() for make in layers))
    left = "is left as it is: OperatorOfItsOwn has a running mean, but is no BatchNorm$"
    with pytest.warns(UserWarning, match=left) as warned:
        gluon_syncbn.convert_sync_batchnorm(net)
    assert len(warned) == 1


def outputs(net, ctx) -> np.ndarray:
    """Those of a training step."""
    x = (np.random.default_rng(0).standard_normal((4, 4, 4)) * 3 + 1).astype("float32")
    return train_step(net, Case(x, split(4, len(ctx)), x), ctx)["out"]


def expect(**options) -> np.ndarray:
    """What one BatchNorm gives on one device."""
    one = nn.BatchNorm(in_channels=4, **options)
    one.initialize(ctx=contexts(1))
    return outputs(one, contexts(1))


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("initialized", [False, True])
def test_convert_and_revert(hybridize, initialized):
    one, many = Nested(), Nested()
    many.hybridize(hybridize)
    if initialized:
        many.initialize(ctx=contexts(2))
        many(nd.ones((2, 4, 4)))  # builds graphs with the plain layers in them
    parameters = dict(many.collect_params().items())
    classes = [type(layer) for layer in norm_layers(many)]
    assert gluon_syncbn.convert_sync_batchnorm(many) is many
    assert all(type(layer) is gluon_syncbn.SyncBatchNorm for layer in norm_layers(many))
    assert many.again is many.first
    assert many.listed[0] in children_of(many)
    after = many.collect_params()
    assert list(after.keys()) == list(parameters)
    assert all(after[name] is parameter for name, parameter in parameters.items())
    assert "momentum=0.7" in repr(many.first)

    one.initialize(mx.init.One())
    many.initialize(mx.init.One(), ctx=contexts(2), force_reinit=True)
    np.testing.assert_allclose(outputs(many, contexts(2)), outputs(one, contexts(1)), atol=1e-4)

    keys = [layer.key for layer in norm_layers(many)]
    gluon_syncbn.convert_sync_batchnorm(many)
    assert [layer.key for layer in norm_layers(many)] == keys, "converting again changes nothing"
    many.first._kwargs["use_global_stats"] = True
    many.again._kwargs["momentum"] = 0.5
    gluon_syncbn.revert_sync_batchnorm(many)
    gluon_syncbn.revert_sync_batchnorm(many)
    assert [type(layer) for layer in norm_layers(many)] == classes
    assert many.first._kwargs["use_global_stats"] is True, "what is frozen stays that"
    assert many.first._kwargs["momentum"] == 0.5
    many(nd.ones((2, 4, 4)))


class Renamed(nn.BatchNorm):
    """A default of its own, and nothing else."""

    def __init__(self, **kwargs):
        super().__init__(momentum=0.7, **kwargs)

    def _alias(self):
        return "norm"


class WithoutCudnn(nn.BatchNorm):
    """As GluonCV's BatchNormCudnnOff."""

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        moments = (running_mean, running_var)
        return F.BatchNorm(x, gamma, beta, *moments, name="fwd", cudnn_off=True, **self._kwargs)


class ForwardOfItsOwn(nn.BatchNorm):
    """It counts its calls, in an attribute."""

    _calls = 0

    def forward(self, x):
        self._calls += 1
        return super().forward(x)


class OfMXNet(PLAIN_NORMS[1]):
    """Its operator waits for other devices in training."""

    def __init__(self, **kwargs):
        super().__init__(num_devices=2, **kwargs)

    def hybrid_forward(self, F, x, **parameters):
        return super().hybrid_forward(F, x, **parameters)


class Scaled(nn.BatchNorm):
    def hybrid_forward(self, F, x, **parameters):
        return 2 * super().hybrid_forward(F, x, **parameters)


class OfItsOwn(nn.BatchNorm):
    """It ignores the layer's epsilon."""

    def hybrid_forward(self, F, x, *parameters, **named):
        return F.BatchNorm(x, *parameters, **named, name="fwd", eps=0.5)


class Swapped(nn.BatchNorm):
    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        return super().hybrid_forward(F, x, beta, gamma, running_mean, running_var)


class FrozenInTraining(nn.BatchNorm):
    def hybrid_forward(self, F, x, **parameters):
        if not autograd.is_training():
            return super().hybrid_forward(F, x, **parameters)
        return F.BatchNorm(x, **parameters, **{**self._kwargs, "use_global_stats": True})


class OnArrays(nn.BatchNorm):
    def forward(self, x):
        return super().forward(x - x.mean().asscalar())


@only_1
@pytest.mark.parametrize("kind", [Renamed, WithoutCudnn, ForwardOfItsOwn, OfMXNet])
def test_subclasses_that_compute_batchnorm(kind):
    calls = []
    net = kind(epsilon=1e-3)
    net.register_forward_hook(lambda *_: calls.append(1))
    options = dict(net._kwargs)
    gluon_syncbn.convert_sync_batchnorm(net)
    assert not calls, "no call of the layer is known"
    assert type(net) is gluon_syncbn.SyncBatchNorm
    net.initialize(ctx=contexts(2))
    expected = expect(epsilon=options["eps"], momentum=options["momentum"])
    np.testing.assert_allclose(outputs(net, contexts(2)), expected, atol=1e-5)
    gluon_syncbn.revert_sync_batchnorm(net)
    assert type(net) is kind


@pytest.mark.parametrize("kind", [Renamed, pytest.param(ForwardOfItsOwn, marks=only_1)])
def test_subclasses_under_the_numpy_interface(kind):
    with mx.util.np_shape(True), mx.util.np_array(True):
        assert type(gluon_syncbn.convert_sync_batchnorm(kind())) is gluon_syncbn.SyncBatchNorm


@only_1
@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("options", [{}, {"axis": 4}, {"axis": -5, "scale": False}], ids=str)
def test_a_conversion_leaves_no_trace(options, hybridize):
    """It calls a subclass with arrays. Programs may do that inside of record()."""
    net = ForwardOfItsOwn(in_channels=4, **options)
    net.initialize(ctx=contexts(2))
    net.hybridize(hybridize)
    parameters = {name: [*each.list_data()] for name, each in net._reg_params.items()}
    drawn = []
    for convert in (False, True):
        mx.random.seed(1)
        with autograd.record():
            if convert:
                gluon_syncbn.convert_sync_batchnorm(net)
        drawn.append(mx.nd.random.uniform().asscalar())
    assert type(net) is gluon_syncbn.SyncBatchNorm
    assert drawn[0] == drawn[1]
    assert "_calls" not in vars(net)
    for name, arrays in parameters.items():
        for old, new in zip(arrays, getattr(net, name).list_data()):
            assert new is old
            assert new.asnumpy().tolist() == [float(name in ("gamma", "running_var"))] * 4


OTHER_NUMBERS = (Scaled, OfItsOwn, Swapped, FrozenInTraining, OnArrays)
OWN_MEMBERS = {
    "__call__": nn.BatchNorm.__call__,
    "__getattribute__": nn.BatchNorm.__getattribute__,
    "__getattr__": object.__getattribute__,
    "__slots__": ("_place",),
    "_clear_cached_op": lambda layer: None,
    "reset": lambda layer: layer.running_mean.set_data(0),
}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        *(
            pytest.param(kind, "does not compute what BatchNorm", marks=only_1)
            for kind in OTHER_NUMBERS
        ),
        *(
            (type("Own", (nn.BatchNorm,), {name: member}), f"has members of its own: {name}$")
            for name, member in OWN_MEMBERS.items()
        ),
    ],
)
def test_other_subclasses_are_left_and_named(kind, why):
    net = sequential(kind(), nn.BatchNorm())
    with pytest.warns(UserWarning, match=f"left as it is: {kind.__name__} {why}") as caught:
        gluon_syncbn.convert_sync_batchnorm(net)
    name = norms_of(net)[0].name
    assert [str(warning.message).split(" is left")[0] for warning in caught] == [name]
    assert [type(layer) for layer in net] == [kind, gluon_syncbn.SyncBatchNorm]


def replace_function(layer, name: str) -> None:
    function = getattr(layer, name)
    setattr(layer, name, lambda *args, **kwargs: 2 * function(*args, **kwargs))


def add_parameter(layer) -> None:
    layer.temperature = gluon.Parameter("temperature", shape=(1,))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda layer: replace_function(layer, "forward"), "a function of its own as forward"),
        pytest.param(
            lambda layer: replace_function(layer, "hybrid_forward"),
            "a function of its own as hybrid_forward",
            marks=only_1,
        ),
        (add_parameter, "has parameters of its own: temperature"),
        (
            lambda layer: vars(layer).update(alpha=3.0, _begin=0),
            "has an attribute of its own that SyncBatchNorm uses: _begin, alpha",
        ),
        (
            lambda layer: layer._kwargs.update(output_mean_var=True),
            "does not compute what BatchNorm computes",
        ),
    ],
)
def test_layers_that_were_changed_are_left_and_named(change, why):
    net = nn.BatchNorm()
    change(net)
    with pytest.warns(UserWarning, match=f"left as it is: BatchNorm .*{why}"):
        gluon_syncbn.convert_sync_batchnorm(net)
    assert type(net) is nn.BatchNorm


def test_what_was_set_on_a_layer_stays():
    """Hooks, attributes and functions that the layer itself does not call."""
    net, calls = nn.BatchNorm(in_channels=4), []
    net.register_forward_pre_hook(lambda *_: calls.append("before"))
    net.register_forward_hook(lambda *_: calls.append("after"))
    net.note, net.cast = "the first norm", calls.append
    net._kwargs["cudnn_off"] = True
    gluon_syncbn.convert_sync_batchnorm(net)
    assert type(net) is gluon_syncbn.SyncBatchNorm
    net.initialize(ctx=contexts(2))
    outputs(net, contexts(2))
    net.cast("float16")
    assert calls == ["before", "after"] * 2 + ["float16"]
    assert net.note == "the first norm"
    gluon_syncbn.revert_sync_batchnorm(net)
    assert net._kwargs["cudnn_off"] is True
    outputs(net, contexts(1))
    assert calls[-2:] == ["before", "after"]


@pytest.mark.parametrize("initialized_first", [True, False])
def test_parameters_keep_their_settings(initialized_first):
    rng, ends = np.random.default_rng(0), []
    x, dy = rng.standard_normal((8, 4)) + 2, rng.standard_normal((8, 4))
    for number in (1, 2):
        net, ctx = nn.BatchNorm(in_channels=4), contexts(number)
        net.gamma.lr_mult, net.gamma.wd_mult = 3, 0.5
        net.beta.grad_req, net.running_mean.init = "add", mx.init.Constant(0.5)
        if initialized_first:
            net.initialize(ctx=ctx)
        if number == 2:
            gluon_syncbn.convert_sync_batchnorm(net)
        if not initialized_first:
            net.initialize(ctx=ctx)
        net.cast("float64")
        options = {"learning_rate": 0.125, "wd": 0.25}
        trainer = gluon.Trainer(net.collect_params(), "sgd", options)
        ends.append(train(net, Case(x, split(8, number), dy), ctx, trainer, 3))
    compare(ends[1], ends[0], 1e-6)
    assert np.abs(ends[1].running["gamma"][0] - 1).max() > 0.01


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"activation": "elu"}, "activation='elu' has no counterpart in BatchNorm"),
        ({"momentum": None}, "momentum=None.* has no counterpart in BatchNorm"),
    ],
)
def test_what_batchnorm_cannot_be(options, problem):
    net = sequential(gluon_syncbn.SyncBatchNorm(), gluon_syncbn.SyncBatchNorm(**options))
    with pytest.raises(ValueError, match=rf"syncbatchnorm\d+: {problem}"):
        gluon_syncbn.revert_sync_batchnorm(net)
    assert {type(layer) for layer in net} == {gluon_syncbn.SyncBatchNorm}, "nothing has changed"
    if "momentum" in options:
        net[1].momentum = 0.9
        gluon_syncbn.revert_sync_batchnorm(net)
        assert {type(layer) for layer in net} == {nn.BatchNorm}
        assert "num_batches_tracked" not in net[1]._collect_params_with_prefix()


def test_a_subclass_of_ours_is_not_reverted():
    kind = type("Own", (gluon_syncbn.SyncBatchNorm,), {})
    assert type(gluon_syncbn.revert_sync_batchnorm(kind())) is kind


@pytest.mark.skipif(not hasattr(nn, "BatchNormReLU"), reason="this MXNet has no such layer")
def test_batchnorm_with_relu_is_left_and_named():
    with pytest.warns(UserWarning, match=r"BatchNormReLU computes a ReLU too: .*activation='relu'"):
        net = gluon_syncbn.convert_sync_batchnorm(nn.BatchNormReLU())
    assert type(net) is nn.BatchNormReLU


def test_a_conversion_takes_no_name():
    before = gluon_syncbn.SyncBatchNorm()
    gluon_syncbn.convert_sync_batchnorm(nn.HybridSequential())
    after = gluon_syncbn.SyncBatchNorm()
    count = len("syncbatchnorm")
    assert int(after.name[count:]) == int(before.name[count:]) + 1


@pytest.mark.parametrize(
    "function", [gluon_syncbn.convert_sync_batchnorm, gluon_syncbn.revert_sync_batchnorm]
)
def test_what_is_no_network_is_refused(function):
    with pytest.raises(TypeError, match=r"net=3 should be a gluon\.Block"):
        function(3)


@pytest.mark.parametrize("mode", [{}, {"static_alloc": True}])
def test_a_part_of_a_network_that_has_run(mode):
    """The network's own graph still has the plain layer in it, and cannot be reached from there."""
    net = sequential(sequential(nn.BatchNorm(in_channels=4)), nn.Activation("relu"))
    other = sequential(nn.BatchNorm(in_channels=4))
    for each in (net, other):
        each.initialize(ctx=contexts(2))
        each.hybridize(**mode)
        outputs(each, contexts(2))
    graph, expected = other._cached_op, np.maximum(expect(), 0)
    gluon_syncbn.convert_sync_batchnorm(net[0])
    np.testing.assert_allclose(outputs(net, contexts(2)), expected, atol=1e-5)
    assert other._cached_op is graph, "networks without these layers keep their graphs"
    gluon_syncbn.revert_sync_batchnorm(net[0])
    assert np.abs(outputs(net, contexts(2)) - expected).max() > 1e-2


def trained(kind: str, folder) -> gluon.Block:
    """A network that has trained on the first two contexts."""
    net = sequential(gluon_syncbn.SyncBatchNorm(in_channels=4), nn.Activation("relu"))
    net.initialize(ctx=contexts(2))
    if kind == "fused":
        net = gluon_syncbn.fuse(net)
    if kind != "imperative":
        net.hybridize()
    outputs(net, contexts(2))
    if kind == "imported":
        net.export(str(folder / "net"))
        net = import_files(folder / "net", contexts(2))
        outputs(net, contexts(2))
    return net


class Equal(HybridBlock):
    """A network of somebody else, which is not hashable."""

    def __eq__(self, other):
        return type(self) is type(other)

    __hash__ = None

    def hybrid_forward(self, F, x):
        return x * 2


@only_1  # MXNet 2 keeps blocks in sets itself
def test_networks_of_others_need_not_be_hashable():
    other = Equal()
    other.hybridize()
    other(nd.ones(1))
    net = gluon_syncbn.convert_sync_batchnorm(nn.BatchNorm(in_channels=4))
    net.initialize(ctx=contexts(2))
    np.testing.assert_allclose(outputs(net, contexts(2)), expect(), atol=1e-5)


@only_1
def test_an_imported_network_that_has_run_can_be_written_after_a_conversion(tmp_path):
    net = trained("imported", tmp_path)
    for change in (gluon_syncbn.convert_sync_batchnorm, gluon_syncbn.revert_sync_batchnorm):
        net.export(str(tmp_path / "again"))
        expected = mx.nd.load(str(tmp_path / "again-0000.params"))
        change(net)
        net.export(str(tmp_path / "changed"))
        assert mx.nd.load(str(tmp_path / "changed-0000.params")).keys() == expected.keys()
    assert len(expected) == 4
    unused = import_files(tmp_path / "again", contexts(1))
    with pytest.raises(RuntimeError, match="call the network once before export"):
        gluon_syncbn.export(unused, tmp_path / "unused")


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "kind", ["imperative", "hybridized", pytest.param("fused", marks=only_1), "imported"]
)
def test_other_contexts(kind, number, tmp_path):
    net = trained(kind, tmp_path)
    with autograd.record():  # outputs on the old contexts stay in use
        old = [net(nd.ones((1, 4, 4), ctx=c)) for c in contexts(2)]
    moved = contexts(5)[2 : 2 + number]
    reset_ctx(net, moved)
    if kind == "imported":
        gluon_syncbn.convert_sync_batchnorm(net)
    elif kind != "imperative":
        net.hybridize()
    np.testing.assert_allclose(outputs(net, moved), np.maximum(expect(), 0), atol=1e-5)
    assert len(old) == 2


@only_1
@pytest.mark.parametrize("fuse", [False, True])
def test_a_symbol_with_variables_that_mxnet_makes(fuse):
    """MXNet copies the attributes of an operator to the variables that it makes."""
    symbol = mx.sym.Custom(
        mx.sym.var("data"), op_type="SyncBatchNorm", name="bn", key="bn", scope="graph", eps=1e-5
    )
    net = gluon.SymbolBlock(mx.sym.relu(symbol), mx.sym.var("data"))
    net.initialize(mx.init.One(), ctx=contexts(2))
    net.collect_params("bn_beta").initialize(mx.init.Zero(), contexts(2), force_reinit=True)
    if fuse:
        net = gluon_syncbn.fuse(net)
        assert net.fused == [("bn", "relu")]
    gluon_syncbn.convert_sync_batchnorm(net)
    np.testing.assert_allclose(outputs(net, contexts(2)), np.maximum(expect(), 0), atol=1e-5)


def dense_and_norm(mode: str, frozen: bool = True, norm=nn.BatchNorm, **options):
    net = sequential(nn.Dense(3, in_units=4), norm(in_channels=3, **options))
    net.initialize(ctx=contexts(2))
    gluon_syncbn.convert_sync_batchnorm(net)
    if frozen:
        for parameter in net.collect_params().values():
            parameter.grad_req = "null"
    net.hybridize(**MODES[mode])
    return net


@pytest.mark.own_process  # which has warned of no layer
@pytest.mark.parametrize("mode", ["imperative", "static_alloc"])
def test_frozen_layers_that_train_are_told_once(mode, capfd):
    """BatchNorm would keep its running statistics, if all parameters before it are frozen."""

    def warnings_of(net, train_mode: bool = True) -> list[str]:
        with autograd.record(train_mode=train_mode):
            outs = [net(nd.ones((2, 4), ctx=c)) for c in contexts(2)]
        for out in outs:
            out.wait_to_read()
        return [line for line in capfd.readouterr().err.splitlines() if "frozen" in line]

    assert not warnings_of(dense_and_norm(mode, frozen=False))
    assert not warnings_of(dense_and_norm(mode, norm=gluon_syncbn.SyncBatchNorm))
    assert not warnings_of(dense_and_norm(mode, center=False, scale=False))
    assert not warnings_of(dense_and_norm(mode, use_global_stats=True))
    net = dense_and_norm(mode)
    assert not warnings_of(net, train_mode=False)
    (warning,) = warnings_of(net)
    assert "is called in training, and its gamma and beta are frozen" in warning
    assert not warnings_of(net)
    assert not warnings_of(dense_and_norm(mode))
