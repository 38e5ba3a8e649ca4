"""The operator as MXNet's users call it: nd, sym, Module; and what it answers to wrong input."""

from __future__ import annotations

import copy
import functools
import itertools
import json

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2, load_symbol

from tests.conftest import DEVICE, contexts
from tests.support.either_mxnet import only_1
from tests.support.oracle import batch_norm, normalize, relative_error
from tests.support.processes import run_python
from tests.support.step import MODES
from tests.support.two_devices import make_layer


def test_defaults_are_those_of_batch_norm():
    """eps=1e-3 as a float, momentum=0.9, fix_gamma=True, axis=1."""
    rng = np.random.default_rng(0)
    shapes = ((4, 3, 5), 3, 3, 3, 3)
    arrays = [mx.nd.array(rng.standard_normal(s) ** 2 / 30, dtype="float64") for s in shapes]
    ours = [a.copy() for a in arrays]
    # On a CPU also where the others have GPUs: cuDNN divides running variances by n - 1.
    theirs = [a.copyto(mx.cpu()) for a in arrays]
    for inputs in (ours, theirs):
        inputs[0].attach_grad()
    with mx.autograd.record():
        out = mx.nd.Custom(*ours, op_type="SyncBatchNorm")
        expected = mx.nd.BatchNorm(*theirs)
    out.backward(arrays[0])
    expected.backward(arrays[0].as_in_context(mx.cpu()))
    for mine, reference, bound in (
        (out, expected, 1e-12),
        (ours[0].grad, theirs[0].grad, 1e-12),
        (ours[3], theirs[3], 1e-7),  # MXNet's momentum is a float
        (ours[4], theirs[4], 1e-7),
    ):
        assert relative_error(mine.asnumpy(), reference.asnumpy()) < bound


@pytest.mark.parametrize(
    ("attributes", "arguments", "states"),
    [
        ({}, [], []),
        ({"shortcut": True}, ["shortcut"], []),
        ({"momentum": None}, [], ["num_batches_tracked"]),
    ],
    ids=str,
)
def test_symbol_names_its_parameters_like_batch_norm(attributes, arguments, states):
    symbol = mx.sym.Custom(mx.sym.var("data"), op_type="SyncBatchNorm", name="bn", **attributes)
    data, half, single = (2, 3, 4, 4), np.float16, np.float32
    names = ["data", "bn_gamma", "bn_beta", *(f"bn_{name}" for name in arguments)]
    assert symbol.list_arguments() == names
    names = ["bn_moving_mean", "bn_moving_var", *(f"bn_{name}" for name in states)]
    assert symbol.list_auxiliary_states() == names
    counts, shortcuts = [(1,)] * len(states), [data] * len(arguments)
    shapes = symbol.infer_shape(data=data)
    assert shapes == ([data, (3,), (3,), *shortcuts], [data], [(3,), (3,), *counts])
    of_states = [single] * (2 + len(states))
    for known in ["data", *(f"bn_{name}" for name in arguments)]:
        dtypes = symbol.infer_type(**{known: half})
        assert dtypes == ([half, single, single, *[half] * len(arguments)], [half], of_states)


def _norm(data, own, **attributes):
    if own:
        return mx.sym.Custom(data, op_type="SyncBatchNorm", name="bn", **attributes)
    return mx.sym.BatchNorm(data, name="bn", **attributes)


def _states(symbol):
    names = symbol.list_auxiliary_states()
    return {name: mx.nd.full(3, float("var" in name)) for name in names}


def _module(symbol, shape):
    """A module of norms on two contexts."""
    module = mx.mod.Module(symbol, label_names=None, context=contexts(2))
    module.bind([("data", shape)])
    module.init_params(mx.init.One(), aux_params=_states(symbol))
    return module


@only_1
def test_module_that_is_bound_again_may_leave_out_backward():
    bn = _norm(mx.sym.var("data"), own=True, key="bound again", num_devices=2)
    module = _module(mx.sym.MakeLoss(bn), (4, 3, 5))

    def run(images):
        values = np.random.default_rng(images).standard_normal((images, 3, 5))
        module.forward(mx.io.DataBatch([mx.nd.array(values)]), is_train=True)
        return values, module.get_outputs()[0]

    run(4)
    module.backward()
    # The operator has been trained. Then it only moves the running statistics.
    for _ in range(2):
        run(4)
    module.reshape([("data", (2, 3, 5))])
    values, out = run(2)
    assert relative_error(out.asnumpy(), normalize(values, eps=1e-3)) < 1e-5


@only_1
@pytest.mark.parametrize("first", [True, False], ids=["train, score", "score, train"])
def test_passes_of_a_module_keep_their_mode(first):
    """Without a wait between them, the second pass would change the mode of the first."""
    attributes = {"key": f"modes {first}", "num_devices": 2, "momentum": 0.5}
    bn = _norm(mx.sym.var("data"), own=True, **attributes)
    module = _module(mx.sym.MakeLoss(bn), (4, 3, 5))
    x = np.random.default_rng(7).normal(3, 2, (4, 3, 5))
    for _ in range(3):
        module.set_params(module.get_params()[0], _states(bn))
        slow = mx.nd.ones((700, 700), ctx=mx.cpu())
        for _ in range(20):
            slow = mx.nd.dot(slow, slow) * 0
        # The passes are queued until this is known.
        batch = mx.io.DataBatch([mx.nd.array(x, ctx=mx.cpu()) + slow[0, 0]])
        outs = {}
        for is_train in (first, not first):
            module.forward(batch, is_train=is_train)
            outs[is_train] = module.get_outputs()[0].copy()
            if is_train:
                module.backward()
        values, states = (x, x, np.ones(3), np.zeros(3)), (np.zeros(3), np.ones(3))
        trained = batch_norm(*values, *states, eps=1e-3, momentum=0.5)
        if first:
            states = trained.running_mean, trained.running_var
        scored = batch_norm(*values, *states, eps=1e-3, batch_statistics=False)
        for is_train, expected in ((True, trained), (False, scored)):
            assert relative_error(outs[is_train].asnumpy(), expected.out) < 1e-5, is_train
        mx.nd.waitall()


def _residual_network(norm):
    x = mx.sym.var("data")
    for i in range(3):
        conv = mx.sym.Convolution(
            x, kernel=(3, 3), pad=(1, 1), num_filter=3, no_bias=True, name=f"conv{i}"
        )
        x = x + mx.sym.Activation(norm(conv, f"bn{i}"), act_type="relu", name=f"relu{i}")
        x._set_attr(mirror_stage="True")
    out = mx.sym.FullyConnected(x, num_hidden=1, name="fc")
    return mx.sym.LinearRegressionOutput(out, mx.sym.var("label"), name="out")


def _mirror(symbol):
    """Mark nodes as SimpleDet's memonger does: all but those where a stage ends."""
    internals = symbol.get_internals()
    stages = 0
    for i in range(len(internals.list_outputs())):
        ends = internals[i].attr("mirror_stage") is not None
        stages += ends
        internals[i]._set_attr(force_mirroring=str(not ends or stages % 2 == 0))


def _train_module(symbol, ctx, sizes):
    """Three steps of SGD with weight decay in float64, with inference between."""
    rng = np.random.default_rng(0)
    module = mx.mod.Module(symbol, label_names=["label"], context=ctx)
    shapes = symbol.infer_shape(data=(sizes[0], 3, 5, 5), label=(sizes[0], 1))
    draw = dict(zip(symbol.list_arguments(), shapes[0]))
    parameters = {
        name: mx.nd.array(rng.normal("gamma" in name, 0.3, shape), dtype="float64")
        for name, shape in draw.items()
        if name not in ("data", "label")
    }
    states = {
        name: mx.nd.full(shape, float("var" in name), dtype="float64")
        for name, shape in zip(symbol.list_auxiliary_states(), shapes[2])
    }

    def of(size):
        return {
            "data_shapes": [mx.io.DataDesc("data", (size, 3, 5, 5), "float64")],
            "label_shapes": [mx.io.DataDesc("label", (size, 1), "float64")],
        }

    module.bind(**of(sizes[0]))
    module.init_params(arg_params=parameters, aux_params=states)
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "wd": 0.01})
    for size in sizes:
        module.reshape(**of(size))
        values = [rng.normal(0, 1, (size, *shape)) for shape in ((3, 5, 5), (1,))]
        data, label = ([mx.nd.array(each, dtype="float64")] for each in values)
        module.forward(mx.io.DataBatch(data, label), is_train=True)
        module.backward()
        module.update()
        mx.nd.waitall()  # MXNet's Module shares the mode of passes
        module.forward(mx.io.DataBatch(data, label), is_train=False)
        mx.nd.waitall()
    arguments, states = module.get_params()
    return module, {name: each.asnumpy() for name, each in {**arguments, **states}.items()}


@only_1
@pytest.mark.parametrize("momentum", [0.9, None])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_mirrored_operators(number, momentum):
    """Backward computes the layer again. The running statistics move once."""

    def norm(data, name):
        return mx.sym.Custom(
            data,
            op_type="SyncBatchNorm",
            name=name,
            key=f"mirrored {name}",
            scope="graph",
            num_devices=number,
            fix_gamma=False,
            momentum=momentum,
        )

    def plain_norm(data, name):
        return mx.sym.BatchNorm(data, name=name, fix_gamma=False)

    sizes = [8, 8, 4, 8]  # a smaller batch binds the network again
    symbol = _residual_network(norm)
    _, expected = _train_module(symbol, contexts(number), sizes)
    _mirror(symbol)
    module, found = _train_module(symbol, contexts(number), sizes)
    assert "bn1_mirror" in module._exec_group.execs[0].debug_str()
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), name
    if momentum is not None:
        _, one = _train_module(_residual_network(plain_norm), contexts(1), sizes)
        # MXNet keeps momentum and learning rate as float32.
        assert max(relative_error(found[name], one[name]) for name in one) < 1e-6


def _call(dtype="float32", parameter="float32", **attributes):
    arrays = [mx.nd.ones((2, 3, 4), dtype=dtype)]
    arrays += [mx.nd.ones(3, dtype=parameter) for _ in range(4)]
    with mx.autograd.record():
        out = mx.nd.Custom(*arrays, op_type="SyncBatchNorm", key="stage1_bn", **attributes)
    return out.asnumpy()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"dtype": "int32"}, "data of int32 where float16, float32 or float64"),
        ({"dtype": "float16", "parameter": "float16"}, "gamma is float16 where float32"),
        ({"dtype": "float64"}, "gamma is float32 where float64"),
        ({"scope": "world"}, "scope='world' should be 'key' or 'graph'"),
    ],
)
def test_wrong_input_is_named_and_leaves_the_process_usable(call, message):
    with pytest.raises(mx.base.MXNetError, match="SyncBatchNorm 'stage1_bn'.*" + message):
        _call(**call)
    assert np.isfinite(_call()).all()


_INPUTS = {
    "": "data, gamma, beta, moving_mean, moving_var",
    "shortcut": "data, gamma, beta, shortcut, moving_mean, moving_var",
    "momentum": "data, gamma, beta, moving_mean, moving_var, num_batches_tracked",
}


def check_numbers_of_inputs() -> None:
    """Read files in which the node has other inputs than the operator makes."""
    for option, names in _INPUTS.items():
        attributes = {} if option == "" else {option: option == "shortcut" or None}
        symbol = mx.sym.Custom(
            mx.sym.var("data"), op_type="SyncBatchNorm", name="bn", key="bn", **attributes
        )
        graph = json.loads(symbol.tojson())
        inputs = graph["nodes"][-1]["inputs"]
        expected = names.count(",") + 1
        assert len(inputs) == expected
        for number in (1, 3, expected - 1, expected + 1, expected + 2):
            graph["nodes"][-1]["inputs"] = (inputs * 2)[:number]
            broken = load_symbol(json.dumps(graph))
            message = (
                rf"SyncBatchNorm 'bn': the number of inputs is {number} where {expected} is "
                rf"expected: {names}$"
            )
            # MXNet itself writes past an array if there are two too many.
            if number <= expected + 1:
                with pytest.raises(mx.base.MXNetError, match=message):
                    broken.infer_shape(data=(2, 3, 4, 4))
            net = mx.gluon.SymbolBlock(broken, mx.sym.var("data"))
            with pytest.raises(ValueError, match=message):
                gluon_syncbn.convert_sync_batchnorm(net)


def test_nodes_with_too_few_or_too_many_inputs():
    """The program may crash, so a process of its own runs it."""
    run_python("import tests.layer.test_operator as t; t.check_numbers_of_inputs()")


@pytest.mark.parametrize(
    ("storage", "sparse"),
    [
        *itertools.product(["csr", "row_sparse"], ["data", "data, hybridized"]),
        *itertools.product(["row_sparse"], ["the gradient of the output", "the gradient of data"]),
        ("row_sparse", "the gradient of the output, hybridized"),
    ],
)
@only_1  # Gluon of MXNet 2 takes no sparse arrays
def test_sparse_arrays_are_refused(storage, sparse):
    layer = make_layer(contexts(1))
    layer.hybridize(active=sparse.endswith("hybridized"))
    x = mx.nd.array(np.arange(12).reshape(4, 3), ctx=contexts(1)[0])
    x.attach_grad(stype=storage if sparse == "the gradient of data" else None)
    words = f"{sparse.split(',')[0]} is {storage} where a dense array is expected; convert it"
    with pytest.raises(mx.base.MXNetError, match=f"SyncBatchNorm 'syncbatchnorm.*: {words}"):  # noqa: PT012
        with mx.autograd.record():
            out = layer(x.tostype(storage) if sparse.startswith("data") else x)
        out.backward(mx.nd.ones((4, 3)).tostype(storage) if "output" in sparse else None)


def _two_norms(data, own):
    return _norm(mx.sym.Convolution(_norm(data, own), num_filter=3, kernel=(1, 1)), own)


@pytest.mark.parametrize("np_shape", [True] if IS_2 else [False, True])
@pytest.mark.parametrize(
    ("network", "shapes"),
    [
        (_norm, {}),
        (_norm, {"bn_gamma": (3,)}),
        (_norm, {"bn_moving_mean": (3,)}),
        (_norm, {"bn_beta": (3,), "bn_gamma": (4,)}),
        (_two_norms, {}),
        (lambda h, own: _norm(h, own) + mx.sym.var("x"), {"x": (2, 3, 4)}),
        (lambda h, own: mx.sym.Group([_norm(h, own), h + mx.sym.var("x")]), {"x": (2, 3, 4)}),
        (lambda h, own: mx.sym.Group([_norm(h, own), h + mx.sym.var("x")]), {"x": (0, 3, 0)}),
    ],
)
def test_shapes_that_are_not_known_yet(np_shape, network, shapes):
    """The operator answers as BatchNorm: other operators may know more."""
    if np_shape:  # where 0 is a size
        shapes = {name: tuple(size or -1 for size in shape) for name, shape in shapes.items()}
    ours, theirs = (network(mx.sym.var("h"), own) for own in (True, False))
    with mx.util.np_shape(np_shape):
        for infer in ("infer_shape", "infer_shape_partial"):
            expected = getattr(theirs, infer)(**shapes)
            assert getattr(ours, infer)(**shapes) == expected, infer
    assert ours.infer_type() == theirs.infer_type()


def test_a_scalar_has_too_few_dimensions():
    with mx.util.np_shape(), pytest.raises(mx.base.MXNetError, match=r"data has shape \(\) where"):
        _norm(mx.sym.var("h"), own=True).infer_shape(h=())


@only_1
def test_shapes_that_come_from_behind():
    """The data gets its shape from an operator that MXNet asks later."""
    h = mx.sym.var("h")
    symbol = mx.sym.Group([_norm(h, own=True, fix_gamma=False), h + mx.sym.var("x")])
    executor = symbol.simple_bind(mx.cpu(), x=(4, 3))
    h = np.random.default_rng(0).standard_normal((4, 3))
    executor.arg_dict["bn_gamma"][:] = 1
    out = executor.forward(is_train=True, h=mx.nd.array(h))[0].asnumpy()
    assert relative_error(out, normalize(h, eps=1e-3)) < 1e-5


def _symbol(key: str, **attributes: object) -> mx.sym.Symbol:
    attributes = {"scope": "graph", "num_devices": 2, "fix_gamma": False, **attributes}
    symbol = mx.sym.var("data")
    for name in ("bn", "later"):
        symbol = mx.sym.Custom(
            symbol * 2, op_type="SyncBatchNorm", name=name, key=f"{key}, {name}", **attributes
        )
    return symbol


def _block(symbol):
    block = mx.gluon.SymbolBlock(symbol, mx.sym.var("data"))
    block.initialize(mx.init.Zero(), ctx=contexts(2))
    for name in ("bn_gamma", "later_gamma"):
        block.params.get(name).set_data(mx.nd.ones(3))
    return block


def _trainer_of_block(block):
    def step(shards):
        with mx.autograd.record():
            outs = [block(x.as_in_context(c)) for x, c in zip(shards, contexts(2))]
        mx.autograd.backward(outs)
        return outs

    return step


def _trainer_of_module(symbol):
    module = _module(symbol, (4, 3))

    def step(shards):
        data = mx.nd.concat(*[x.as_in_context(mx.cpu()) for x in shards], dim=0)
        module.forward(mx.io.DataBatch([data]), is_train=True)
        (outs,) = module.get_outputs(merge_multi_context=False)
        module.backward([mx.nd.ones(data.shape, ctx=mx.cpu())])
        return outs

    return step


def _two_blocks(mode, symbol, again):
    blocks = [_block(symbol), _block(again(symbol))]
    for block in blocks:
        block.hybridize(**MODES[mode])
    return [_trainer_of_block(block) for block in blocks]


def _two_modules(symbol, again):
    return [_trainer_of_module(each) for each in (symbol, again(symbol))]


TWO_MODELS = {
    **{mode: functools.partial(_two_blocks, mode) for mode in MODES},
    "Modules": _two_modules,
}


def _check_normalized(outs):
    out = np.concatenate([each.asnumpy() for each in outs])
    assert np.abs(out.mean(0)).max() < 1e-5


@only_1
@pytest.mark.parametrize("again", [lambda symbol: symbol, copy.deepcopy], ids=["same", "copy"])
@pytest.mark.parametrize("kind", TWO_MODELS)
def test_two_models_of_one_symbol_are_refused(kind, again):
    gluon_syncbn.set_timeout(1)  # backward passes wait for the one that follows the error
    models = TWO_MODELS[kind](_symbol(f"two models: {kind}"), again)
    shards = [mx.nd.random.normal(shape=(2, 3)) for _ in range(2)]
    errors = _errors_of(models, shards, steps=4)
    assert any("two models were made of one symbol" in error for error in errors)
    assert kind != "Modules" or not any("static_shape" in error for error in errors)
    # One of them goes on alone, once its norms have forgotten the other.
    assert any(not _errors_after_drop_step(models[0], shards) for _ in range(20))


def _errors_after_drop_step(model, shards):
    gluon_syncbn.drop_step()
    return _errors_of([model], shards, steps=1)


def _errors_of(models, shards, steps):
    errors = set()
    for _ in range(steps):
        for array in [out for step in models for out in step(shards)] + [None]:
            try:
                mx.nd.waitall() if array is None else array.wait_to_read()
            except mx.base.MXNetError as error:
                errors.add(str(error))
    return errors


@only_1
@pytest.mark.parametrize("kind", TWO_MODELS)
def test_models_of_symbols_that_were_loaded_each_for_itself(kind):
    models = TWO_MODELS[kind](
        _symbol(f"loaded: {kind}"), lambda symbol: mx.sym.load_json(symbol.tojson())
    )
    for _ in range(20):
        shards = [mx.nd.random.normal(shape=(2, 3)) for _ in range(2)]
        for outs in [models[0](shards), models[1](shards)]:
            _check_normalized(outs)


@only_1
def test_a_second_model_of_one_symbol_that_trains_after_the_first():
    """As in a notebook that runs a cell again: no rounds are mixed."""
    symbol = _symbol("cells")
    for _ in range(4):
        model = _trainer_of_module(symbol)
        for _ in range(8):
            shards = [mx.nd.random.normal(shape=(2, 3)) for _ in range(2)]
            _check_normalized(model(shards))


@only_1
@pytest.mark.parametrize("kind", TWO_MODELS)
def test_a_symbol_for_one_device_on_two_is_refused(kind):
    """Each device would normalize its own shard alone."""
    symbol = _symbol(f"for one: {kind}", num_devices=1)
    step = TWO_MODELS[kind](symbol, lambda symbol: mx.sym.load_json(symbol.tojson()))[0]
    shards = [mx.nd.random.normal(shape=(2, 3)) for _ in range(2)]
    errors = _errors_of([step], shards, steps=4)
    words = f"num_devices=1, but {DEVICE}(0), {DEVICE}(1) train in turns"
    assert any(words in error for error in errors)


@only_1
def test_a_node_repeats_only_what_is_mirrored():
    """Two models of one symbol, the first bound without gradients."""
    symbol = _symbol("repeated", num_devices=1, momentum=0)
    symbol.get_internals()["bn_output"]._set_attr(force_mirroring="True")
    means = []
    for grad_req in ("null", "write"):
        executor = symbol.simple_bind(contexts(1)[0], data=(4, 3), grad_req=grad_req)
        for name, array in _states(symbol).items():
            executor.aux_dict[name][:] = array
        executor.forward(is_train=True, data=mx.nd.array(np.eye(4, 3) + len(means)))
        mx.nd.waitall()
        means.append(executor.aux_dict["bn_moving_mean"].asnumpy())
    np.testing.assert_allclose(means, [[0.5] * 3, [2.5] * 3], rtol=1e-6)
