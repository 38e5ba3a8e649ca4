"""Exported networks go through MXNet's exporter to ONNX and give the same answers there."""

from __future__ import annotations

import sys

import gluon_syncbn
import mxnet as mx
import numpy as np
import onnx
import onnxruntime
import pytest
from gluon_syncbn.__main__ import main
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts
from tests.support.either_mxnet import nd, only_1
from tests.support.networks import leaves, sequential, two_norms
from tests.support.step import require_close


def small() -> nn.HybridSequential:
    """Norms with and without scale, with and without a layer to fold them into.

    MXNet's exporter takes any gamma, and the norm without scale takes 1.
    """
    of_checkpoint = mx.init.Constant(3)
    return sequential(
        nn.Conv2D(4, 3, groups=2, in_channels=4),
        gluon_syncbn.SyncBatchNorm(epsilon=0.01),
        nn.Activation("relu"),
        gluon_syncbn.SyncBatchNorm(scale=False, gamma_initializer=of_checkpoint),
        nn.Conv2DTranspose(6, 2, strides=2),
        gluon_syncbn.SyncBatchNorm(center=False),
        nn.GlobalAvgPool2D(),
        nn.Flatten(),
        nn.Dense(5),
        gluon_syncbn.SyncBatchNorm(),
    )


@pytest.fixture
def exported(tmp_path):
    """Export a trained network; return the beginning of the file names, an input, the outputs."""

    def export(net, shape):
        net.initialize(mx.init.Xavier(), ctx=contexts(2))
        net.hybridize()
        rng = np.random.default_rng(0)
        with autograd.record():  # running statistics that are not the initial ones
            outs = [net(nd.array(rng.normal(1, 2, shape), ctx=ctx)) for ctx in contexts(2)]
        mx.nd.waitall()
        del outs
        x = rng.standard_normal(shape).astype("float32")
        outs = leaves(net(nd.array(x)))
        net.export(str(tmp_path / "net"))
        return tmp_path, x, [out.asnumpy() for out in outs]

    return export


def export(folder, *options) -> int:
    files = [f"{folder}/net-symbol.json", f"{folder}/net-0000.params", f"{folder}/plain"]
    return main(["export", *files, *options])


def to_onnx(folder, shape, *options) -> int:
    shape = ",".join(map(str, shape))
    return export(folder, "--onnx", f"{folder}/net.onnx", "--input-shape", shape, *options)


def check_answers(folder, x, expected, *options, most: float = 1e-5) -> None:
    """Write an ONNX file; fail where it differs by more than `most` of the largest value."""
    assert to_onnx(folder, x.shape, *options) == 0
    file = f"{folder}/net.onnx"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (data,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    # Outputs are in the order of their names.
    answers = [value for _, value in sorted(zip(names, session.run(None, {data.name: x})))]
    assert len(answers) == len(expected)
    for found, wanted in zip(answers, expected):
        require_close(file, found, wanted, most)


@pytest.mark.parametrize("fold", [[], ["--fold"]])
def test_small_network(exported, fold, capfd):
    folder, x, expected = exported(small(), (2, 4, 7, 7))
    check_answers(folder, x, expected, *fold)
    shown = capfd.readouterr()
    assert f", {folder}/net.onnx\n" in shown.out
    assert not shown.err, "onnxruntime has nothing to warn of"
    model = onnx.load(f"{folder}/net.onnx")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 13)]
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("BatchNormalization") == (1 if fold else 4)


@only_1
def test_gluoncv_network(exported):
    """FCN-ResNet50 with its auxiliary output."""
    from gluoncv.model_zoo import FCN

    net = FCN(nclass=3, backbone="resnet50", pretrained_base=False, crop_size=32, ctx=contexts(2))
    gluon_syncbn.convert_sync_batchnorm(net)
    folder, x, expected = exported(net, (1, 3, 32, 32))
    assert len(expected) == 2
    check_answers(folder, x, expected, "--fold", most=1e-4)


class Pooled(gluon.HybridBlock):
    """What PSPNet and FastSCNN do."""

    def hybrid_forward(self, F, x):
        return F.contrib.AdaptiveAvgPooling2D(x, output_size=2)


@only_1  # MXNet 2 has the operator by another name
def test_operators_that_the_exporter_does_not_know(exported, capsys):
    net = sequential(nn.Conv2D(4, 3), gluon_syncbn.SyncBatchNorm(), Pooled())
    folder, _, _ = exported(net, (1, 3, 8, 8))
    assert to_onnx(folder, (1, 3, 8, 8)) == 1
    assert "cannot write this network: _contrib_AdaptiveAvgPooling2D" in capsys.readouterr().err
    assert not (folder / "net.onnx").exists()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (["2,5,7,7"], "--input-shape does not fit (data (2, 5, 7, 7))"),
        (["2,4,7,7", "2,3"], "--input-shape was given 2 times for 1 inputs: data"),
    ],
)
def test_wrong_shapes(exported, shapes, message, capsys):
    folder, _, _ = exported(small(), (2, 4, 7, 7))
    options = [option for shape in shapes for option in ("--input-shape", shape)]
    assert export(folder, "--onnx", str(folder / "net.onnx"), *options) == 1
    assert message in capsys.readouterr().err
    assert not (folder / "plain-symbol.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--onnx", "net.onnx"], "--onnx and --input-shape (such as 1,3,480,480) need each other"),
        (["--input-shape", "1,3"], "--onnx and --input-shape"),
        (["--onnx", "net.onnx", "--input-shape", "1,x"], "'1,x' should be whole numbers"),
        (["--onnx", "net.onnx", "--input-shape", "1,0"], "'1,0' should be whole numbers"),
    ],
)
def test_wrong_options(tmp_path, options, message, capsys):
    with pytest.raises(SystemExit):
        export(tmp_path, *options)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "message"),
    [("onnx", "need the package onnx"), ("onnx.mapping", "does not work with onnx 1.")],
)
def test_missing_package(tmp_path, missing, message, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "onnx.mapping":
        monkeypatch.delattr(onnx, "mapping", raising=False)
    assert to_onnx(tmp_path, (1, 3, 8, 8)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "pip install 'gluon_syncbn[onnx]'" in error


def test_half_precision_is_refused(exported, capsys):
    folder, _, _ = exported(small(), (2, 4, 7, 7))
    params = folder / "net-0000.params"
    arrays = {name: array.astype("float16") for name, array in mx.nd.load(str(params)).items()}
    mx.nd.save(str(params), arrays)
    assert to_onnx(folder, (2, 4, 7, 7)) == 1
    assert "writes float32 parameters only, and the network has float16" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "fold"), [("elu 0.5", []), ("leaky 0.3", ["--fold"])])
def test_activations_and_shortcuts(exported, kind, fold):
    check_answers(*exported(two_norms(kind), (2, 3, 5, 5)), *fold, most=1e-4)


@only_1
@pytest.mark.parametrize("fold", [[], ["--fold"]])
def test_variables_that_mxnet_makes(tmp_path, fold):
    """MXNet copies the attributes of an operator to the variables that it makes."""
    symbol = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=3, name="conv")
    symbol = mx.sym.Custom(symbol, op_type="SyncBatchNorm", name="bn", fix_gamma=False)
    net = gluon.SymbolBlock(symbol, mx.sym.var("data"))
    net.initialize(mx.init.One())
    x = np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype("float32")
    expected = net(nd.array(x)).asnumpy()
    net.export(str(tmp_path / "net"))
    check_answers(tmp_path, x, [expected], *fold)
