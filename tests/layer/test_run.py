"""``gluon-syncbn run``: programs of other people's making, unchanged, with our layer.

Python itself is the oracle of everything but the layer: the same program runs both ways.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.either_mxnet import IS_2, only_1
from tests.support.oracle import Expected, batch_norm, relative_error
from tests.support.processes import ROOT, clean_environment

RUN = ("-m", "gluon_syncbn", "run")


def python(
    folder: Path, *arguments: str, stdin: str = "", PYTHONPATH: str = str(ROOT)
) -> subprocess.CompletedProcess:
    """Run Python in `folder`, which has the program, with the package importable."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env={**clean_environment(), "PYTHONPATH": PYTHONPATH},
        cwd=folder,
        input=stdin,
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


def run_and_compare(
    folder: Path, program: str, how: str, options: tuple[str, ...] = ()
) -> tuple[str, Any, Expected]:
    """Run a program that writes arrays, and compare its output with that of one device."""
    said = run(folder, program, how, options=options)
    found = np.load(folder / "found.npz")
    expected = batch_norm(found["x"], found["dy"], ONES, ZEROS, ZEROS, ONES)
    assert relative_error(found["out"], expected.out) < 1e-5
    return said, found, expected


FACTS = """
import sys
print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path)
print(sys.flags, sys.warnoptions, sys.stdout.write_through, sorted({*sys.modules} - {"atexit"}))
"""
COMMANDS = {
    "script": ("-O", "-X", "utf8", "-u", "--", "folder/__main__.py", "-m", "--convert"),
    "folder": ("folder", "x"),
    "zip": ("folder.zip",),
    "module": ("-m", "folder", "-h", "--", "x"),
    "link": ("link.py",),
    "stdin": ("-", "x"),
}
ENDINGS = {
    "script": "def fail():\n    1 / 0\nfail()\n",
    "module": "sys.exit('goodbye')\n",
    "link": "raise KeyboardInterrupt\n",
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_program_sees_what_python_shows_it(kind, tmp_path):
    text, command = FACTS + ENDINGS.get(kind, ""), COMMANDS[kind]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(text)
    (tmp_path / "link.py").symlink_to("folder/__main__.py")
    (tmp_path / "sitecustomize.py").write_text("print('own')\n")
    with zipfile.ZipFile(tmp_path / "folder.zip", "w") as archive:
        archive.writestr("__main__.py", text)
    flags = 4 if kind == "script" else 0
    paths = f"{ROOT}:{tmp_path}"
    expected = python(tmp_path, *command, stdin=text, PYTHONPATH=paths)
    command = (*command[:flags], *RUN, *command[flags:])
    result = python(tmp_path, *command, stdin=text, PYTHONPATH=paths)
    assert result.stdout == f"own\n{expected.stdout}"  # the command is a Python, too
    assert result.returncode == expected.returncode
    warning = "warning: nothing was synchronized, because the program did not import mxnet"
    # At its import, MXNet 2 says which pool of memory it takes.
    said = re.sub(r".*storage\.cc.*\n", "", result.stderr)
    assert said == f"{expected.stderr}gluon_syncbn: {warning}\n"


def test_a_program_has_the_package_of_the_command(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import gluon_syncbn\nprint(gluon_syncbn.__file__)\n")
    result = python(ROOT, *RUN, str(program), PYTHONPATH="")
    assert result.stdout == f"{ROOT}/gluon_syncbn/__init__.py\n"


def test_nothing_is_said_without_stderr(tmp_path):
    (tmp_path / "program.py").write_text("print(1)\n")
    command = f"exec {sys.executable} -W ignore -m gluon_syncbn run program.py 2>&-"
    environment = {**clean_environment(), "PYTHONPATH": str(ROOT)}
    assert subprocess.check_output(command, shell=True, env=environment, cwd=tmp_path) == b"1\n"


def test_errors_after_the_one_that_ended_the_program_are_not_shown(tmp_path):
    (tmp_path / "program.py").write_text(
        "import mxnet as mx\n"
        "first, second = (mx.nd.random.normal(0, -1, (2,), ctx=mx.cpu(i)) for i in range(2))\n"
        "first.asnumpy()\n"
    )
    result = python(tmp_path, *RUN, "program.py")
    assert result.returncode == 1
    assert result.stderr.count("scale parameter in gaussian has to be positive") == 1


# A thread per device makes the first call of a network.
THREADS = """
import sys, threading, time
from mxnet import gluon
from tests.support.either_mxnet import HybridBlock
from tests.support.program import *

calls = []

class Slow(HybridBlock):
    def hybrid_forward(self, F, x):
        calls.append(x)
        time.sleep(0.3)  # the other thread comes meanwhile
        return x

kinds = gluon.nn if hasattr(gluon.nn, "SyncBatchNorm") else gluon.contrib.nn
net = gluon.nn.HybridSequential()
net.add(Slow(), kinds.SyncBatchNorm(num_devices=2))
net.initialize(ctx=ctx)
if "hybridize" in sys.argv:
    net.hybridize()
xs, outs = split(x), [None, None]

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
mx.autograd.backward(outs, split(dy))
save(outs, dx=[each.grad for each in xs])
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
from mxnet import autograd, gluon
from tests.support.program import *
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

model = Net(mx.gluon.contrib.nn.SyncBatchNorm, {"num_devices": len(ctx)})
model.initialize()
if "hybridize" in sys.argv:
    model.hybridize()
net = DataParallelModel(model, ctx, True)
evaluator = DataParallelModel(SegEvalModel(model), ctx)
criterion = DataParallelCriterion(Loss(), ctx, True)
data = nd.array(x)
with autograd.record(True):
    outputs = net(data)
    losses = criterion(outputs, nd.array(dy))
    mx.nd.waitall()
    autograd.backward(losses)
assert len(traces) == ("hybridize" in sys.argv), len(traces)
save(
    [out for out, _ in outputs],
    dgamma=[sum(each.as_in_context(ctx[0]) for each in model.norm.gamma.list_grad())],
    mean=model.norm.running_mean.list_data(), evaluated=[out[0] for out in evaluator(data)],
)
"""


@only_1  # GluonCV
@pytest.mark.parametrize("how", ["hybridize", "imperative"])
def test_the_shape_of_gluoncvs_segmentation_script(how, tmp_path):
    said, found, expected = run_and_compare(tmp_path, SEGMENTATION, how)
    assert relative_error(found["dgamma"], expected.dgamma) < 1e-5
    assert relative_error(found["mean"], np.tile(expected.running_mean, 2)) < 1e-5
    after = (expected.running_mean, expected.running_var)
    inference = batch_norm(found["x"], found["dy"], ONES, ZEROS, *after, batch_statistics=False)
    assert relative_error(found["evaluated"], inference.out) < 1e-5
    names = "net_syncbatchnorm0, net_syncbatchnorm1"
    assert f"2 layers ({names}) synchronized cpu(0), cpu(1) in 1 round each\n" in said


# The shape of GluonCV's detection scripts, on plain BatchNorm and with automatic mixed precision.
DETECTION = """
from mxnet import autograd, gluon
from mxnet.contrib import amp
from tests.support.program import *
amp.init()

class Own(gluon.nn.BatchNorm):
    def hybrid_forward(self, F, x, **parameters):
        return 2 * super().hybrid_forward(F, x, **parameters)

class Same(gluon.nn.BatchNorm):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._kwargs["cudnn_off"] = True

net = gluon.nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(gluon.nn.BatchNorm(), Own(), Same())
relu = gluon.nn.BatchNormReLU(in_channels=1)
relu.initialize()
try:
    relu(mx.nd.ones((1, 1)))
except mx.base.MXNetError:
    pass  # CPU contexts have no such operator without oneDNN
net.initialize()
net(mx.nd.ones((1, 4, 5, 5)))
net.collect_params().reset_ctx(ctx)
net.hybridize(static_alloc=True)
options = {"learning_rate": 0.1}
trainer = gluon.Trainer(net.collect_params(), "sgd", options, update_on_kvstore=False)
amp.init_trainer(trainer)
for step in range(2):
    with autograd.record():
        losses = [net(part).square().sum() for part in split(x)]
        with amp.scale_loss(losses, trainer) as scaled:
            autograd.backward(scaled)
    trainer.step(4)
save([nd.array(x)], mean=net[0].running_mean.list_data())
"""


@only_1  # prefixes, amp of mx.contrib
def test_the_shape_of_gluoncvs_detection_scripts(tmp_path):
    said = run(tmp_path, DETECTION, options=("--convert",))
    found = np.load(tmp_path / "found.npz")
    mean = 0.19 * found["x"].mean((0, 2, 3))
    assert relative_error(found["mean"], np.tile(mean, 2)) < 1e-5
    names = "net_batchnorm0, net_same0"
    assert f"2 layers ({names}) synchronized cpu(0), cpu(1) in 2 rounds each\n" in said
    for kind in ("Own", "BatchNormReLU"):
        assert f"1 layer of {kind} stayed: " in said


MODULE = """
from mxnet.symbol.contrib import SyncBatchNorm
from tests.support.program import *

bn = SyncBatchNorm(mx.sym.var("data"), ndev=2, key="a", fix_gamma=False, eps=1e-5)
bn = mx.sym.MakeLoss(bn * mx.sym.var("label"))
module = mx.mod.Module(bn, label_names=["label"], context=ctx)
module.bind([("data", x.shape)], [("label", x.shape)], inputs_need_grad=True)
module.init_params()
module.forward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(dy)]), is_train=True)
module.backward()

arrays = [[mx.nd.array(each, ctx=c) for each in ([0] * 4, [1] * 4)] for c in ctx]
with mx.autograd.record():
    outs = [
        mx.nd.contrib.SyncBatchNorm(
            part, ones, zeros, zeros.copy(), ones.copy(), ndev=2, key="b", fix_gamma=False,
            eps=1e-5, name="b",
        )
        for part, (zeros, ones) in zip(split(x), arrays)
    ]
var = module._exec_group.execs[1].aux_dict["syncbatchnorm0_moving_var"]
save(outs, product=module.get_outputs(), dx=module.get_input_grads(), var=[var])
"""


@only_1  # Module, mx.sym.contrib
def test_modules_and_operators(tmp_path):
    said, found, expected = run_and_compare(tmp_path, MODULE, "")
    assert relative_error(found["product"], expected.out * found["dy"]) < 1e-5
    assert relative_error(found["dx"], expected.dx) < 1e-5
    assert relative_error(found["var"], expected.running_var) < 1e-5
    assert "2 layers (b, syncbatchnorm0) synchronized cpu(0), cpu(1) in 1 round each\n" in said


NO_GPUS = """
from tests.support.program import *

options = {"ndev": 0, "fix_gamma": False, "eps": 1e-5}
x = mx.nd.array([[1], [3]])
ones, zeros = mx.nd.ones(1), mx.nd.zeros(1)
arrays = [x, ones, zeros, zeros.copy(), ones.copy()]
symbol = mx.sym.contrib.SyncBatchNorm(mx.sym.var("data"), key="k", **options)
executor = symbol.bind(mx.cpu(), arrays[:3], aux_states=arrays[3:])
layer = mx.gluon.contrib.nn.SyncBatchNorm(in_channels=1, num_devices=0)
layer.initialize()
with mx.autograd.record():
    outs = [
        executor.forward(is_train=True)[0],
        mx.nd.contrib.SyncBatchNorm(*arrays, key="l", **options),
        mx.nd.contrib.SyncBatchNorm(*arrays, key="m", fix_gamma=False, eps=1e-5),
        layer(x),
    ]
for out in outs:
    np.testing.assert_allclose(out.asnumpy(), [[-1], [1]], atol=1e-4)
"""


@only_1  # mx.sym.contrib
def test_no_gpus_are_one_device(tmp_path):
    """Programs give the number of GPUs. MXNet's operator crashes with 0."""
    run(tmp_path, NO_GPUS)


SAVE = """
import mxnet as mx
norm = mx.sym.contrib.SyncBatchNorm
bn = norm(mx.sym.var("data"), ndev=2, key="k", name="bn", eps=1e-5, attr={"lr_mult": "3"})
both = norm(bn, key="l", name="both", output_mean_var=True)[0]
for name, symbol in (("net", bn), ("left", mx.sym.BatchNorm(both))):
    symbol.save(f"{name}-symbol.json")
"""
LOAD = """
import contextlib
from mxnet import gluon
from tests.support.program import *

net = gluon.SymbolBlock.imports("net-symbol.json", ["data"])
net.initialize(mx.init.Zero(), ctx=ctx)
with mx.autograd.record():
    outs = [net(part) for part in split(x)]
from_text = getattr(mx.sym, "fromjson", None) or mx.sym.load_json
loaded = [mx.sym.load("left-symbol.json"), from_text(open("net-symbol.json").read())]
assert loaded[1].attr("lr_mult") == "3"
bind = "_simple_bind" if hasattr(loaded[0], "_simple_bind") else "simple_bind"
with contextlib.suppress(UnboundLocalError):  # of MXNet 2, in this method
    getattr(loaded[0], bind)(mx.cpu(), data=(2, 4))
save(outs)
"""


def test_symbols_in_files(tmp_path):
    (tmp_path / "save.py").write_text(SAVE)
    assert python(tmp_path, "save.py").returncode == 0
    said, *_ = run_and_compare(tmp_path, LOAD, "")
    assert "1 layer (bn) synchronized cpu(0), cpu(1) in 1 round\n" in said
    assert "1 operator _contrib_SyncBatchNorm stayed: " in said
    assert "1 operator BatchNorm stayed: " in said


# As features of a network in GluonCV's detectors: a symbol, before the parameters have contexts.
FEATURES = """
import sys
from mxnet import gluon
from mxnet.gluon import nn
from tests.support.program import *

def backbone():
    net = nn.HybridSequential(prefix="backbone_")
    with net.name_scope():
        net.add(nn.BatchNorm(), nn.Flatten())
    return net

if "module" in sys.argv:
    module = mx.mod.Module(backbone()(mx.sym.var("data")), label_names=None, context=ctx)
    module.bind([("data", x.shape)])
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.array(x)]), is_train=True)
    outs = module.get_outputs()
else:
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                net, data = backbone(), mx.sym.var("data")
                self.features = gluon.SymbolBlock([net(data)], [data], params=net.collect_params())
        def hybrid_forward(self, F, x):
            return self.features(x)
    net = Net()
    net.initialize()
    net.hybridize("hybridize" in sys.argv)
    with mx.autograd.record():  # on one context, as before a detector moves to its devices
        net(mx.nd.array(x)).wait_to_read()
    net.collect_params().reset_ctx(ctx)
    with mx.autograd.record():
        outs = [net(part) for part in split(x)]
save(outs)
mx.sym.BatchNorm(mx.sym.var("data")).simple_bind(mx.cpu(), data=(2, 3))
"""


@only_1  # networks that are called with symbols
@pytest.mark.parametrize("how", ["module", "hybridize", "imperative"])
def test_networks_that_become_symbols_before_they_have_contexts(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, FEATURES, how, options=("--convert",))
    assert "synchronized cpu(0), cpu(1) in 1 round\n" in said
    assert "1 operator BatchNorm stayed: " in said


# Nodes that no layer made.
NODES = """
import sys
from concurrent.futures import ThreadPoolExecutor
from mxnet import gluon
from tests.support.program import *

data = mx.sym.var("data")
bn = mx.sym.BatchNorm(data, fix_gamma=False, eps=1e-5, name="bn")
if sys.argv[1] == "module":
    module = mx.mod.Module(bn, label_names=None, context=ctx)
    module.bind([("data", x.shape)])
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.array(x)]), is_train=True)
    outs = module.get_outputs()
    assert "Custom" not in module.symbol.tojson()
elif sys.argv[1] == "feedforward":
    outs = []
    output = mx.sym.LinearRegressionOutput(bn, mx.sym.var("label"))  # its output is its input
    model = mx.model.FeedForward(output, ctx=ctx, num_epoch=1)
    model.fit(
        mx.io.NDArrayIter(x, x, batch_size=len(x), label_name="label"),
        eval_metric=mx.metric.np(lambda _, out: outs.append(mx.nd.array(out)) or 0),
    )
    assert "Custom" not in model.symbol.tojson()
elif sys.argv[1] == "statistics":  # that are inputs
    block = gluon.SymbolBlock(bn, [data, *map(mx.sym.var, bn.list_auxiliary_states())])
    block.initialize("zeros", ctx=ctx)
    block.collect_params(".*gamma").initialize("ones", ctx=ctx, force_reinit=True)
    with mx.autograd.record():
        outs = [
            block(part, mx.nd.zeros(4, ctx=part.ctx), mx.nd.ones(4, ctx=part.ctx))
            for part in split(x)
        ]
else:
    bn.save("bn-symbol.json")
    block = gluon.SymbolBlock.imports("bn-symbol.json", ["data"])
    net = gluon.nn.HybridSequential()
    net.add(block, gluon.nn.Flatten())
    block.initialize("zeros")
    block.collect_params(".*(gamma|var)").initialize("ones")
    net.hybridize(sys.argv[1] == "hybridized")
    for moved in (ctx, ctx[:1], ctx):
        net.collect_params().reset_ctx(moved)
        if sys.argv[1] == "converted":
            import gluon_syncbn
            gluon_syncbn.convert_sync_batchnorm(net)
        def call(part):
            with mx.autograd.record():
                return net(part)
        calls = map if sys.argv[1] != "threads" else ThreadPoolExecutor().map
        outs = list(calls(call, split(x)[:len(moved)]))
save(outs)
"""


@only_1
@pytest.mark.parametrize(
    "how",
    ["module", "feedforward", "statistics", "imported", "hybridized", "converted", "threads"],
)
def test_batchnorm_nodes(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, NODES, how, options=("--convert",))
    rounds = "1 round" if how in ("module", "feedforward", "statistics") else "2 rounds"
    assert f"1 layer (bn) synchronized cpu(0), cpu(1) in {rounds}\n" in said
    assert "stayed" not in said


# What MXNet 2's own layer calls.
NUMPY_OPERATOR = """
import sys
from mxnet import gluon, npx
from tests.support.program import *

class Norm(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        shape = {"shape": (4,), "init": "zeros"}
        self.gamma, self.beta = (gluon.Parameter(name, **shape) for name in ("gamma", "beta"))
        self.mean, self.var = (
            gluon.Parameter(name, grad_req="null", **shape) for name in ("mean", "var")
        )
    def forward(self, x):
        arrays = (each.data(x.device) for each in (self.gamma, self.beta, self.mean, self.var))
        return npx.sync_batch_norm(x, *arrays, ndev=2, key="k", fix_gamma=True, eps=1e-5)

net = Norm()
net.initialize(ctx=ctx)
net.hybridize("hybridize" in sys.argv)
with mx.autograd.record():
    outs = [net(part) for part in split(x)]
save(outs)
"""


@pytest.mark.skipif(not IS_2, reason="MXNet 1.9.1 has no such operator")
@pytest.mark.parametrize("how", ["hybridize", "imperative"])
def test_the_operator_of_numpy_arrays(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, NUMPY_OPERATOR, how)
    assert "synchronized cpu(0), cpu(1) in 1 round" in said


CHILDREN = """
import multiprocessing, subprocess, sys
from mxnet import gluon
from tests.support.program import *

kinds = gluon.nn if hasattr(gluon.nn, "SyncBatchNorm") else gluon.contrib.nn

def train(steps):
    net = kinds.SyncBatchNorm(num_devices=2)
    net.initialize(ctx=ctx)
    for _ in range(steps):
        with mx.autograd.record():
            outs = [net(part) for part in split(x)]
        mx.nd.waitall()
    save(outs)

if __name__ == "__main__" and "again" in sys.argv:
    train(2)
elif __name__ == "__main__":
    train(1)
    list(gluon.data.DataLoader(list(range(2)), 1, num_workers=1))  # its process says nothing
    if sys.argv[1] == "subprocess":
        children = [subprocess.Popen([sys.executable, __file__, "again"]) for _ in range(2)]
        assert [each.wait() for each in children] == [0, 0]
    else:
        child = multiprocessing.get_context(sys.argv[1]).Process(target=train, args=(2,))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver", "subprocess"])
def test_processes_that_the_program_starts(how, tmp_path):
    said, *_ = run_and_compare(tmp_path, CHILDREN, how)
    counts = re.findall("^gluon_syncbn: (.*?)1 layer .* in (.*)", said, flags=re.MULTILINE)
    others = "2 other processes: " if how == "subprocess" else "1 other process: "
    assert counts == [("", "1 round"), (others, "2 rounds")]


# Neither program imports mxnet before it starts a process.
STARTERS = {
    "command": """
import subprocess, sys
subprocess.run([sys.executable, "children.py", "again"], check=True)
""",
    "fork": """
import multiprocessing, runpy, sys
def train():
    sys.argv.append("again")
    runpy.run_path("children.py", run_name="__main__")
child = multiprocessing.get_context("fork").Process(target=train)
child.start()
child.join()
assert child.exitcode == 0
""",
}


@pytest.mark.parametrize("how", STARTERS)
def test_a_program_that_only_starts_processes(how, tmp_path):
    (tmp_path / "children.py").write_text(CHILDREN)
    said, *_ = run_and_compare(tmp_path, STARTERS[how], "")
    assert re.search(r"^gluon_syncbn: 1 other process: 1 layer .* in 2 rounds$", said, re.MULTILINE)
    assert "warning" not in said


# Copies of networks are made without a constructor. MXNet puts all on one context.
COPIES = """
import copy, multiprocessing, pickle, sys
from mxnet import gluon
from tests.support.program import *

def step(net):
    for each in net.collect_params().values():
        each.reset_ctx(ctx)
    with mx.autograd.record():
        outs = [net(part) for part in split(x)]
    mx.nd.waitall()
    return outs

def train(pickled):
    save(step(pickle.loads(pickled)))

make = copy.deepcopy if sys.argv[1] == "deepcopy" else lambda net: pickle.loads(pickle.dumps(net))
if __name__ == "__main__":
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.BatchNorm())
    net.initialize()
    if sys.argv[1] == "spawn":
        pickled = pickle.dumps(net)
        child = multiprocessing.get_context("spawn").Process(target=train, args=(pickled,))
        child.start()
        child.join()
    else:
        before = make(net)
        step(net)
        after = make(net)
        after.hybridize()
        save(step(net), before=step(before), after=step(after))
"""


@pytest.mark.parametrize(
    "how", ["deepcopy", *(pytest.param(how, marks=only_1) for how in ("pickle", "spawn"))]
)
def test_copies_are_converted(how, tmp_path):
    _, found, expected = run_and_compare(tmp_path, COPIES, how, options=("--convert",))
    for name in ("before", "after") if how != "spawn" else ():
        assert relative_error(found[name].reshape(expected.out.shape), expected.out) < 1e-5


# What a program writes and prints of a converted network.
FILES = """
import mxnet as mx
import onnxruntime
from mxnet.gluon import nn
from tests.support.either_mxnet import nd
from tests.support.program import *

net = nn.HybridSequential()
net.add(nn.BatchNorm(epsilon=0.1), nn.BatchNorm(scale=False, gamma_initializer=mx.init.Constant(3)))
net.initialize(ctx=ctx)
net.hybridize()
with mx.autograd.record():
    outs = [net(part) for part in split(x)]
mx.nd.waitall()
net.export("net")
mx.viz.print_summary(mx.sym.load("net-symbol.json"), {"data": x.shape})
mx.onnx.export_model("net-symbol.json", "net-0000.params", [x.shape], "float32", "net.onnx")
session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
expected = net(nd.array(x, ctx=ctx[0])).asnumpy()
(found,) = session.run(None, {"data": x.astype("float32")})
np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
"""


def test_files_and_summaries_are_those_of_the_network_as_it_was(tmp_path):
    (tmp_path / "program.py").write_text(FILES)
    expected = python(tmp_path, "program.py")
    result = python(tmp_path, *RUN, "--convert", "program.py")
    assert expected.returncode == result.returncode == 0, expected.stderr + result.stderr
    assert "synchronized cpu(0), cpu(1) in 1 round each" in result.stderr
    assert result.stdout == expected.stdout
    assert "Total params: 16" in result.stdout


UNUSED = """
import mxnet as mx
layer = mx.gluon.contrib.nn.SyncBatchNorm(num_devices=1)
layer.initialize()
with mx.autograd.record():
    layer(mx.nd.ones((2, 3)))
bn = mx.sym.contrib.SyncBatchNorm(mx.sym.var("data"), name="bn", key="bn", output_mean_var=True)
print(bn.list_outputs())
bn.simple_bind(mx.cpu(), data=(2, 3))
arrays = [mx.nd.array(each) for each in ([[1, 2], [3, 6]], [1, 1], [0, 0], [0, 0], [1, 1])]
with mx.autograd.record():
    outputs = mx.nd.contrib.SyncBatchNorm(*arrays, key="nd", output_mean_var=True)
print(outputs[1].asnumpy(), outputs[2].asnumpy())
"""


@only_1  # mx.sym.contrib
def test_layers_that_never_synchronize_are_a_warning(tmp_path):
    (tmp_path / "program.py").write_text(UNUSED)
    result = python(tmp_path, *RUN, "program.py")
    assert result.stdout == "['bn_output', 'bn_mean', 'bn_var']\n[2. 4.] [1. 4.]\n"
    assert result.stderr == (
        "gluon_syncbn: warning: nothing was synchronized, although the program made 1 "
        "SyncBatchNorm: none was trained on several devices\n"
        "gluon_syncbn: 2 operators _contrib_SyncBatchNorm stayed: run replaces SyncBatchNorm "
        "without output_mean_var, and --convert the BatchNorms of SymbolBlocks and Modules\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "a script, or -m and a module, is missing"),
        (("--num-devices", "2", "x.py"), "--num-devices belongs to --convert"),
        (("--num-devices", "0", "--convert", "x.py"), "'0' should be a whole number of at least 1"),
    ],
)
def test_wrong_options_are_named(options, message, capsys):
    from gluon_syncbn.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["run", *options])
    assert message in capsys.readouterr().err


def test_options_of_python_that_ignore_the_environment():
    result = python(ROOT, "-E", *RUN, "x.py")
    assert result.returncode == 2
    assert "Python's options -E, -I and -S keep run from reaching the program" in result.stderr
