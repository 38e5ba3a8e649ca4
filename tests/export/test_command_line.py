"""python -m gluon_syncbn, above all convert."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.__main__ import main
from mxnet import gluon
from mxnet.gluon import nn


@pytest.fixture
def exported(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), gluon_syncbn.SyncBatchNorm(), nn.Activation("relu"))
    net.initialize()
    net.hybridize()
    x = mx.nd.random.normal(shape=(2, 3, 6, 6))
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    net.save_parameters(str(tmp_path / "gluon.params"))
    return tmp_path, x, expected


@pytest.mark.parametrize("arguments", [[], ["diagnosis"], ["convert", "net-symbol.json"]])
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


@pytest.mark.parametrize("options", [[], ["--fold"]])
def test_convert(exported, options, capsys):
    folder, x, expected = exported
    files = [str(folder / "net-symbol.json"), str(folder / "net-0000.params"), str(folder / "new")]
    assert main(["convert", *files, *options]) == 0
    text = (folder / "new-symbol.json").read_text()
    assert "SyncBatchNorm" not in text
    assert ('"BatchNorm"' in text) == (not options)
    assert ("folded into" in capsys.readouterr().out) == bool(options)
    net = gluon.SymbolBlock.imports(f"{files[2]}-symbol.json", ["data"], f"{files[2]}-0000.params")
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("symbol", "params", "message"),
    [
        ("no.json", "net-0000.params", "No such file"),
        ("net-symbol.json", "no.params", "No such file"),
        ("garbage", "net-0000.params", "garbage holds no symbol of MXNet"),
        ("net-symbol.json", "garbage", "garbage holds no parameters of MXNet"),
        ("net-symbol.json", "gluon.params", "may come from save_parameters instead of export"),
        ("net-symbol.json", "other.params", "do the two files belong together?"),
    ],
)
def test_bad_files_are_named(exported, symbol, params, message, capsys):
    folder = exported[0]
    (folder / "garbage").write_text("{not a graph")
    mx.nd.save(str(folder / "other.params"), {"arg:weight": mx.nd.ones((2,))})
    assert main(["convert", str(folder / symbol), str(folder / params), str(folder / "new")]) == 1
    assert message in capsys.readouterr().err
    assert not (folder / "new-symbol.json").exists()
