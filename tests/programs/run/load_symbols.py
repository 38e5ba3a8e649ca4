"""All functions of MXNet that read a symbol."""

import contextlib
from pathlib import Path

import mxnet as mx
from mxnet import gluon

from tests.programs.run.data import ctx, save, split, x

net = gluon.SymbolBlock.imports("net-symbol.json", ["data"])
net.initialize(mx.init.Zero(), ctx=ctx)
with mx.autograd.record():
    outs = [net(part) for part in split(x)]
from_text = getattr(mx.sym, "fromjson", None) or mx.sym.load_json
loaded = [mx.sym.load("left-symbol.json"), from_text(Path("net-symbol.json").read_text())]
assert loaded[1].attr("lr_mult") == "3"
bind = "_simple_bind" if hasattr(loaded[0], "_simple_bind") else "simple_bind"
with contextlib.suppress(UnboundLocalError):  # of MXNet 2, in this method
    getattr(loaded[0], bind)(mx.cpu(), data=(2, 4))
save(outs)
