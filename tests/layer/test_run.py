"""``gluon-syncbn run``: programs of other people's making, unchanged, with our layer.

Python itself is the oracle of everything but the layer: the same program runs both ways.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.either_mxnet import only_1
from tests.support.oracle import Expected, batch_norm, relative_error
from tests.support.processes import ROOT, clean_environment

RUN = ("-m", "gluon_syncbn", "run")


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run Python in `folder`, which has the program, with the package importable."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(folder: Path, program: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Run `program` by the command, expect success, and return what it printed to stderr."""
    (folder / "program.py").write_text(program)
    result = python(folder, *RUN, *options, "program.py", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stderr


ZEROS, ONES = np.zeros(4), np.ones(4)


def run_and_compare(folder: Path, program: str, how: str) -> tuple[str, Any, Expected]:
    """Run a program that writes arrays, and compare its output with that of one device."""
    said = run(folder, program, how)
    found = np.load(folder / "found.npz")
    expected = batch_norm(found["x"], found["dy"], ONES, ZEROS, ZEROS, ONES)
    assert relative_error(found["out"], expected.out) < 1e-5
    return said, found, expected


FACTS = """
import pickle, sys
import beside
class Mine: pass
number: int = 1
names = sorted(set(globals()) - {"__warningregistry__"})
assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
import __main__
assert __main__.Mine is Mine and __annotations__ == {"number": int}
print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0], names)
"""
ENDINGS = {
    "error": ("def fail():\n    1 / 0\nfail()\n", ("folder/program.py", "-m", "--convert")),
    "message": ("sys.exit('goodbye')\n", ("-m", "folder.program", "-h", "--", "x")),
    "interrupt": ("raise KeyboardInterrupt\n", ("folder/program.py",)),
    "own hook": (
        "sys.excepthook = lambda *error: print('hook', *error[:2])\nraise ValueError('v')\n",
        ("folder/program.py",),
    ),
    "syntax": ("x = = 1\n", ("folder/program.py",)),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_sees_what_python_shows_it(ending, tmp_path):
    text, command = ENDINGS[ending]
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "beside.py").touch()
    (folder / "beside.py").touch()
    (folder / "program.py").write_text(FACTS + text)
    expected, result = python(tmp_path, *command), python(tmp_path, *RUN, *command)
    assert result.stdout == expected.stdout
    assert result.returncode == expected.returncode != 0
    # Between the interpreter and the program there are frames of runpy, as with python -m. MXNet 2
    # says which pool of memory it takes.
    runpy = r'  File "<frozen runpy>".*\n|  File ".*/runpy.py".*\n(    .*\n)*|.*storage\.cc.*\n'
    theirs, ours = (re.sub(runpy, "", each.stderr) for each in (expected, result))
    assert ours.startswith(theirs)
    warning = "nothing was synchronized, because the program made no SyncBatchNorm"
    assert warning in ours[len(theirs) :]


def test_a_link_to_a_program_imports_from_the_programs_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "beside.py").touch()
    (tmp_path / "folder" / "program.py").write_text("import beside, sys\nprint(sys.path[0])\n")
    (tmp_path / "link.py").symlink_to("folder/program.py")
    expected, result = python(tmp_path, "link.py"), python(tmp_path, *RUN, "link.py")
    assert result.stdout == expected.stdout == f"{(tmp_path / 'folder').resolve()}\n"


# A thread per device makes the first call of a network.
THREADS = """
import sys, threading, time
import mxnet as mx, numpy as np
from mxnet import gluon
from tests.support.either_mxnet import HybridBlock, nd

calls = []

class Slow(HybridBlock):
    def hybrid_forward(self, F, x):
        calls.append(x)
        time.sleep(0.3)  # the other thread comes meanwhile
        return x

kinds = gluon.nn if hasattr(gluon.nn, "SyncBatchNorm") else gluon.contrib.nn
ctx = [mx.cpu(0), mx.cpu(1)]
net = gluon.nn.HybridSequential()
net.add(Slow(), kinds.SyncBatchNorm(num_devices=2))
net.initialize(ctx=ctx)
if "hybridize" in sys.argv:
    net.hybridize()
x, dy = (np.random.default_rng(i).normal(1, 2, (3, 4, 5, 5)) for i in range(2))
xs, dys = ([nd.array(a[:1], ctx=ctx[0]), nd.array(a[1:], ctx=ctx[1])] for a in (x, dy))
outs = [None, None]

def call(i):
    xs[i].attach_grad()
    with mx.autograd.record():
        outs[i] = net(xs[i])

threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert len(calls) == (1 if "hybridize" in sys.argv else 2)
mx.autograd.backward(outs, dys)
out, dx = (np.concatenate([a.asnumpy() for a in arrays]) for arrays in (outs, [x.grad for x in xs]))
np.savez("found.npz", x=x, dy=dy, out=out, dx=dx)
"""


@pytest.mark.parametrize("how", ["hybridize", "imperative"])
def test_first_calls_from_several_threads(how, tmp_path):
    said, found, expected = run_and_compare(tmp_path, THREADS, how)
    assert relative_error(found["dx"], expected.dx) < 1e-5
    assert "1 layer (syncbatchnorm0) synchronized cpu(0), cpu(1) in 1 round" in said


# The shape of GluonCV's scripts/segmentation/train.py: a thread per device makes the first call of
# the hybridized network, the criterion has threads too, and a second model evaluates.
SEGMENTATION = """
import sys, time
import mxnet as mx, numpy as np
from mxnet import autograd, gluon
from gluoncv.utils.parallel import DataParallelCriterion, DataParallelModel
from gluoncv.model_zoo.segbase import SegEvalModel

traces = []

class Net(gluon.HybridBlock):
    def __init__(self, norm_layer, norm_kwargs):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.norm = norm_layer(**norm_kwargs)
            self.other = gluon.contrib.nn.basic_layers.SyncBatchNorm(num_devices=2)
    def hybrid_forward(self, F, x):
        if F is mx.sym:
            traces.append(x)
            time.sleep(0.3)  # the other thread comes meanwhile
        return self.norm(x), self.other(x)
    def evaluate(self, x):
        return self.forward(x)[0]

class Loss(gluon.HybridBlock):
    def hybrid_forward(self, F, out, other, dy):
        return (out * dy).sum() + 0 * other.sum()

ctx = [mx.cpu(0), mx.cpu(1)]
model = Net(mx.gluon.contrib.nn.SyncBatchNorm, {"num_devices": len(ctx)})
model.initialize()
if "hybridize" in sys.argv:
    model.hybridize()
net = DataParallelModel(model, ctx, True)
evaluator = DataParallelModel(SegEvalModel(model), ctx)
criterion = DataParallelCriterion(Loss(), ctx, True)
rng = np.random.default_rng(0)
x, dy = (mx.nd.array(rng.normal(1, 2, (3, 4, 5, 5))) for _ in range(2))
with autograd.record(True):
    outputs = net(x)
    losses = criterion(outputs, dy)
    mx.nd.waitall()
    autograd.backward(losses)
assert len(traces) == ("hybridize" in sys.argv), len(traces)
np.savez(
    "found.npz", x=x.asnumpy(), dy=dy.asnumpy(),
    out=np.concatenate([out.asnumpy() for out, _ in outputs]),
    dgamma=sum(g.asnumpy() for g in model.norm.gamma.list_grad()),
    mean=[each.asnumpy() for each in model.norm.running_mean.list_data()],
    evaluated=np.concatenate([out[0].asnumpy() for out in evaluator(x)]),
)
"""


@only_1  # GluonCV
@pytest.mark.parametrize("how", ["hybridize", "imperative"])
def test_the_shape_of_gluoncvs_segmentation_script(how, tmp_path):
    said, found, expected = run_and_compare(tmp_path, SEGMENTATION, how)
    assert relative_error(found["dgamma"], expected.dgamma) < 1e-5
    assert relative_error(found["mean"], np.stack([expected.running_mean] * 2)) < 1e-5
    after = (expected.running_mean, expected.running_var)
    inference = batch_norm(found["x"], found["dy"], ONES, ZEROS, *after, batch_statistics=False)
    assert relative_error(found["evaluated"], inference.out) < 1e-5
    names = "net_syncbatchnorm0, net_syncbatchnorm1"
    assert f"2 layers ({names}) synchronized cpu(0), cpu(1) in 1 round each\n" in said


# The shape of GluonCV's detection scripts, on plain BatchNorm and with automatic mixed precision.
DETECTION = """
import mxnet as mx, numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp
amp.init()

class Own(gluon.nn.BatchNorm): pass

ctx = [mx.cpu(0), mx.cpu(1)]
net = gluon.nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(gluon.nn.BatchNorm(), Own())
net.initialize()
net(mx.nd.ones((1, 4, 5, 5)))
net.collect_params().reset_ctx(ctx)
net.hybridize(static_alloc=True)
options = {"learning_rate": 0.1}
trainer = gluon.Trainer(net.collect_params(), "sgd", options, update_on_kvstore=False)
amp.init_trainer(trainer)
rng = np.random.default_rng(0)
x = mx.nd.array(rng.normal(1, 2, (4, 4, 5, 5)))
for step in range(2):
    with autograd.record():
        losses = [net(part).square().sum() for part in gluon.utils.split_and_load(x, ctx)]
        with amp.scale_loss(losses, trainer) as scaled:
            autograd.backward(scaled)
    trainer.step(4)
means = [each.asnumpy() for each in net[0].running_mean.list_data()]
np.savez("found.npz", x=x.asnumpy(), mean=means)
"""


@only_1  # prefixes, amp of mx.contrib
def test_the_shape_of_gluoncvs_detection_scripts(tmp_path):
    said = run(tmp_path, DETECTION, options=("--convert",))
    found = np.load(tmp_path / "found.npz")
    mean = 0.19 * found["x"].astype("float64").mean((0, 2, 3))
    assert relative_error(found["mean"], np.stack([mean] * 2)) < 1e-5
    assert "1 layer (net_batchnorm0) synchronized cpu(0), cpu(1) in 2 rounds\n" in said
    assert "1 layer of Own stayed as they were" in said


MODULE = """
import mxnet as mx, numpy as np
from mxnet.symbol.contrib import SyncBatchNorm

x, dy = (np.random.default_rng(i).normal(1, 2, (4, 3, 5, 5)) for i in range(2))
bn = SyncBatchNorm(mx.sym.var("data"), ndev=2, key="a", fix_gamma=False, eps=1e-5)
bn = mx.sym.MakeLoss(bn * mx.sym.var("label"))
ctx = [mx.cpu(0), mx.cpu(1)]
module = mx.mod.Module(bn, label_names=["label"], context=ctx)
module.bind([("data", x.shape)], [("label", x.shape)], inputs_need_grad=True)
module.init_params()
module.forward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(dy)]), is_train=True)
module.backward()
out, dx = module.get_outputs()[0].asnumpy(), module.get_input_grads()[0].asnumpy()

arrays = [[mx.nd.array(each, ctx=c) for each in ([0] * 3, [1] * 3)] for c in ctx]
with mx.autograd.record():
    outs = [
        mx.nd.contrib.SyncBatchNorm(
            mx.nd.array(part, ctx=c), ones, zeros, zeros.copy(), ones.copy(), ndev=2, key="b",
            fix_gamma=False, eps=1e-5, name="b",
        )
        for part, c, (zeros, ones) in zip((x[:1], x[1:]), ctx, arrays)
    ]
by_arrays = np.concatenate([each.asnumpy() for each in outs])
var = module._exec_group.execs[1].aux_dict["syncbatchnorm0_moving_var"].asnumpy()
np.savez("found.npz", x=x, dy=dy, out=out, dx=dx, by_arrays=by_arrays, var=var)
"""


@only_1  # Module, mx.sym.contrib
def test_modules_and_operators(tmp_path):
    said = run(tmp_path, MODULE)
    found = np.load(tmp_path / "found.npz")
    zeros, ones = np.zeros(3), np.ones(3)
    expected = batch_norm(found["x"], found["dy"], ones, zeros, zeros, ones)
    assert relative_error(found["out"], expected.out * found["dy"]) < 1e-5
    assert relative_error(found["dx"], expected.dx) < 1e-5
    assert relative_error(found["by_arrays"], expected.out) < 1e-5
    assert relative_error(found["var"], expected.running_var) < 1e-5
    assert "2 layers (a, b) synchronized cpu(0), cpu(1) in 1 round each\n" in said


UNUSED = """
import mxnet as mx
layer = mx.gluon.contrib.nn.SyncBatchNorm(num_devices=1)
layer.initialize()
with mx.autograd.record():
    layer(mx.nd.ones((2, 3)))
try:
    mx.sym.contrib.SyncBatchNorm(mx.sym.var("data"), name="bn", output_mean_var=True)
except ValueError as error:
    print(error)
"""


@only_1  # mx.sym.contrib
def test_layers_that_never_synchronize_are_a_warning(tmp_path):
    (tmp_path / "program.py").write_text(UNUSED)
    result = python(tmp_path, *RUN, "program.py")
    assert result.stdout == (
        "SyncBatchNorm bn: output_mean_var=True is not supported; the operator of gluon_syncbn "
        "returns the normalized data only\n"
    )
    assert result.stderr == (
        "gluon_syncbn: warning: nothing was synchronized, although the program made 1 "
        "SyncBatchNorm: none was trained on several devices\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "a script, or -m and a module, is missing"),
        (("none.py",), "error: none.py is not a file that can be read"),
        (("--num-devices", "2", "x.py"), "--num-devices belongs to --convert"),
    ],
)
def test_wrong_options_are_named(options, message, capsys):
    from gluon_syncbn.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["run", *options])
    assert message in capsys.readouterr().err
