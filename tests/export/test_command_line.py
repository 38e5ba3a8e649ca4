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


NET = ("net-symbol.json", "net-0000.params")


def run(folder, *files, command: str = "export", options=()) -> int:
    return main([command, *(str(folder / name) for name in files), *options])


@pytest.mark.parametrize("arguments", [[], ["diagnosis"], ["export", "net-symbol.json"]])
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


@pytest.mark.parametrize("options", [[], ["--fold"]])
def test_export(exported, options, capsys):
    folder, x, expected = exported
    assert run(folder, *NET, "new", options=options) == 0
    text = (folder / "new-symbol.json").read_text()
    assert "SyncBatchNorm" not in text
    assert ('"BatchNorm"' in text) == (not options)
    assert ("folded into" in capsys.readouterr().out) == bool(options)
    check_files(folder / "new", x, expected, 5e-6)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("no.json", NET[1], "new"), "No such file"),
        ((NET[0], "no.params", "new"), "No such file"),
        (("garbage", NET[1], "new"), "garbage holds no symbol of MXNet"),
        ((NET[1], NET[1], "new"), "net-0000.params holds no symbol of MXNet"),
        ((NET[0], "garbage", "new"), "garbage holds no parameters of MXNet"),
        ((NET[0], "gluon.params", "new"), "may come from save_parameters instead of export"),
        ((NET[0], "other.params", "new"), "do the two files belong together?"),
        ((*NET, "net"), "would be overwritten, but is an input: choose another OUT"),
        ((*NET, "sub/../net"), "net-symbol.json would be overwritten"),
        ((*NET, "none/new"), "new-symbol.json cannot be written: there is no folder"),
    ],
)
def test_bad_files_are_named(exported, files, message, capsys):
    folder = exported[0]
    (folder / "sub").mkdir()
    (folder / "garbage").write_text("{not a graph")
    mx.nd.save(str(folder / "other.params"), {"arg:weight": mx.nd.ones((2,))})
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(folder, *files) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_nothing_to_convert(exported, capsys):
    folder = exported[0]
    assert run(folder, *NET, "plain") == 0
    assert "nothing to convert" not in capsys.readouterr().out
    assert run(folder, "plain-symbol.json", "plain-0000.params", "again") == 0
    expected = f"nothing to convert: {folder / 'plain-symbol.json'} has no SyncB"
    assert expected in capsys.readouterr().out


def test_the_name_of_earlier_releases_warns(exported, capsys):
    folder = exported[0]
    assert run(folder, *NET, "new", command="convert") == 0
    assert "warning: convert is now called export" in capsys.readouterr().err
    assert (folder / "new-symbol.json").exists()
