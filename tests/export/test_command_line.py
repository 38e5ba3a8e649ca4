"""python -m gluon_syncbn, above all export."""

from __future__ import annotations

import gluon_syncbn
import mxnet as mx
import pytest
from gluon_syncbn.__main__ import main
from mxnet.gluon import nn

from tests.support.either_mxnet import nd
from tests.support.networks import check_files, sequential


@pytest.fixture
def exported(tmp_path):
    net = sequential(nn.Conv2D(4, 3), gluon_syncbn.SyncBatchNorm(), nn.Activation("relu"))
    net.initialize()
    net.hybridize()
    x = nd.random.normal(shape=(2, 3, 6, 6))
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    net.save_parameters(str(tmp_path / "gluon.params"))
    return tmp_path, x, expected


@pytest.mark.parametrize("arguments", [[], ["diagnosis"], ["export", "net-symbol.json"]])
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


@pytest.mark.parametrize("options", [[], ["--fold"]])
def test_export(exported, options, capsys):
    folder, x, expected = exported
    files = [str(folder / "net-symbol.json"), str(folder / "net-0000.params"), str(folder / "new")]
    assert main(["export", *files, *options]) == 0
    text = (folder / "new-symbol.json").read_text()
    assert "SyncBatchNorm" not in text
    assert ('"BatchNorm"' in text) == (not options)
    assert ("folded into" in capsys.readouterr().out) == bool(options)
    check_files(folder / "new", x, expected, 5e-6)


@pytest.mark.parametrize(
    ("symbol", "params", "message"),
    [
        ("no.json", "net-0000.params", "No such file"),
        ("net-symbol.json", "no.params", "No such file"),
        ("garbage", "net-0000.params", "garbage holds no symbol of MXNet"),
        ("net-0000.params", "net-0000.params", "net-0000.params holds no symbol of MXNet"),
        ("net-symbol.json", "garbage", "garbage holds no parameters of MXNet"),
        ("net-symbol.json", "gluon.params", "may come from save_parameters instead of export"),
        ("net-symbol.json", "other.params", "do the two files belong together?"),
    ],
)
def test_bad_files_are_named(exported, symbol, params, message, capsys):
    folder = exported[0]
    (folder / "garbage").write_text("{not a graph")
    mx.nd.save(str(folder / "other.params"), {"arg:weight": mx.nd.ones((2,))})
    assert main(["export", str(folder / symbol), str(folder / params), str(folder / "new")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "new-symbol.json").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("net", "net-symbol.json would be overwritten, but is an input: choose another OUT"),
        ("sub/../net", "net-symbol.json would be overwritten"),
        ("none/new", "new-symbol.json cannot be written: there is no folder"),
    ],
)
def test_bad_outputs_are_named(exported, out, message, capsys):
    folder = exported[0]
    (folder / "sub").mkdir()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    files = [str(folder / "net-symbol.json"), str(folder / "net-0000.params")]
    assert main(["export", *files, str(folder / out)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_nothing_to_convert(exported, capsys):
    folder = exported[0]
    first, second = str(folder / "plain"), str(folder / "again")
    files = [str(folder / "net-symbol.json"), str(folder / "net-0000.params")]
    assert main(["export", *files, first]) == 0
    assert "nothing to convert" not in capsys.readouterr().out
    assert main(["export", f"{first}-symbol.json", f"{first}-0000.params", second]) == 0
    assert f"nothing to convert: {first}-symbol.json has no SyncB" in capsys.readouterr().out


def test_the_name_of_earlier_releases_warns(exported, capsys):
    folder = exported[0]
    files = [str(folder / "net-symbol.json"), str(folder / "net-0000.params"), str(folder / "new")]
    assert main(["convert", *files]) == 0
    assert "warning: convert is now called export" in capsys.readouterr().err
    assert (folder / "new-symbol.json").exists()
