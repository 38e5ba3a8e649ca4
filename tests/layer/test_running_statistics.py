"""An update of running statistics belongs to the training pass that made it.

It goes to that pass's own arrays and is in them when the pass is over, whatever else there is:
other graphs of the same layers, copies, imports, inference, passes that never come.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gluon_syncbn
import mxnet as mx
import numpy as np
import pytest
from gluon_syncbn.mxnet_versions import IS_2
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon
from mxnet.gluon import nn

from tests.conftest import contexts, examples
from tests.support.either_mxnet import HybridBlock, nd, only_1, reset_ctx
from tests.support.networks import import_files
from tests.support.oracle import normalize, relative_error
from tests.support.step import MODES

CHANNELS = 2
MOMENTUM = 0.9


class Features(HybridBlock):
    """A part of a network that is called by itself too."""

    def __init__(self, norm: nn.BatchNorm) -> None:
        super().__init__()
        with self.name_scope():
            self.norm = norm

    def hybrid_forward(self, F, x):
        return self.norm(x * 2)


class Net(HybridBlock):
    """One layer used three times, in branches that no data connects, and another one once."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.shared = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, momentum=MOMENTUM)
            self.features = Features(self.shared)
            self.other = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, momentum=MOMENTUM)

    def hybrid_forward(self, F, x):
        first = self.features(x)
        second = F.relu(self.shared(x * 3 + 1))
        third = self.shared(x - 2)
        return F.relu(self.other(x)) + first + second + third


# What the uses of each norm see in a pass, in the order of the calls.
SHARED = (lambda x: x * 2, lambda x: x * 3 + 1, lambda x: x - 2)


@dataclass
class Statistics:
    """The running statistics of a norm, as its training passes have moved them.

    The uses of a norm in parallel branches of a static graph may move them in any order, which
    leaves several possible values.
    """

    possible: list[tuple[np.ndarray, np.ndarray]] = field(
        default_factory=lambda: [(np.zeros(CHANNELS), np.ones(CHANNELS))]
    )

    def move(self, *batches: np.ndarray, in_any_order: bool = False) -> None:
        orders = list(itertools.permutations(batches)) if in_any_order else [batches]
        self.possible = [_moved(*start, order) for start in self.possible for order in orders]

    def settle(self, mean: np.ndarray) -> None:
        """Keep the possible values that are closest to what was found."""
        self.possible = [min(self.possible, key=lambda each: np.abs(each[0] - mean).sum())]


def _moved(mean: np.ndarray, variance: np.ndarray, batches: Sequence[np.ndarray]) -> tuple:
    for x in batches:
        mean = MOMENTUM * mean + (1 - MOMENTUM) * x.mean((0, 2))
        variance = MOMENTUM * variance + (1 - MOMENTUM) * x.var((0, 2))
    return mean, variance


@dataclass
class Family:
    """Callables that share the parameters of one network, and what these should be."""

    net: gluon.Block
    callables: dict[str, gluon.Block]
    mode: str
    shared: Statistics = field(default_factory=Statistics)
    other: Statistics = field(default_factory=Statistics)

    def train(self, name: str, x: np.ndarray) -> None:
        """Note a training pass of the callable `name`."""
        uses = SHARED[:1] if name == "features" else SHARED
        in_any_order = self.mode == "static_shape"
        self.shared.move(*(use(x) for use in uses), in_any_order=in_any_order)
        if name != "features":
            self.other.move(x)

    def check(self) -> None:
        mx.nd.waitall()  # in a static_shape graph, no operation waits for the running statistics
        parameters = {}
        for name, parameter in self.net.collect_params(".*running.*").items():
            layer, kind = re.split("[._]running_", name)
            # MXNet 2 names parameters by their place in the network.
            number = layer[-1] if "batchnorm" in layer else "01"[layer == "other"]
            parameters[f"{number}_running_{kind}"] = parameter
        for norm, expected in (("0", self.shared), ("1", self.other)):
            found = [
                [data.asnumpy() for data in parameters[f"{norm}_running_{kind}"].list_data()]
                for kind in ("mean", "var")
            ]
            expected.settle(found[0][0])
            for on_devices, value in zip(found, expected.possible[0]):
                np.testing.assert_allclose(on_devices[0], value, rtol=1e-5, atol=1e-6, err_msg=norm)
                for other in on_devices[1:]:
                    np.testing.assert_array_equal(other, on_devices[0], err_msg=norm)


def new_family(mode: str) -> Family:
    net = Net()
    net.initialize(ctx=contexts(2))
    return Family(net, _callables(net, mode), mode)


def _callables(net: gluon.Block, mode: str) -> dict[str, gluon.Block]:
    callables = {"net": net}
    if not IS_2:
        callables["fused"] = gluon_syncbn.fuse(net)
        with autograd.record():
            callables["fused again"] = gluon_syncbn.fuse(net)
    if isinstance(net, Net):
        callables["features"] = net.features
    for each in callables.values():
        each.hybridize(**MODES[mode])
    return callables


def imported(net: gluon.Block, folder: Path, mode: str, rename: str = "") -> Family:
    """A network loaded from a file of `net`, whose parameters get a prefix more."""
    mx.nd.waitall()
    net.hybridize()
    net(nd.zeros((1, CHANNELS, 3), ctx=contexts(1)[0]))
    net.export(str(folder / "net"))
    net.hybridize(False)
    net.hybridize(**MODES[mode])
    if rename:
        symbol, parameters = folder / "net-symbol.json", str(folder / "net-0000.params")
        symbol.write_text(symbol.read_text().replace('"name": "net', f'"name": "{rename}net'))
        values = {k.replace(":", f":{rename}"): v for k, v in mx.nd.load(parameters).items()}
        mx.nd.save(parameters, values)
    block = import_files(folder / "net", contexts(2))
    block.hybridize(**MODES[mode])
    return Family(block, {"net": block}, mode)


def batch(rng: np.random.Generator, size: int = 5) -> np.ndarray:
    return rng.normal(rng.normal(), rng.uniform(0.5, 2), (size, CHANNELS, 3)).astype("float32")


def shards(x: np.ndarray) -> list[mx.nd.NDArray]:
    return gluon.utils.split_and_load(nd.array(x), contexts(2), even_split=False)


def train_after(net: gluon.Block, x: np.ndarray, before: Callable = lambda x: None) -> None:
    """Forward and backward on all contexts; `before` is called on each shard first."""
    with autograd.record():
        outs = []
        for shard in shards(x):
            with autograd.pause():
                before(shard)
            outs.append((net(shard) ** 2).sum())
    autograd.backward(outs)


@pytest.fixture(params=[mode for mode in MODES if mode != "imperative"])
def mode(request) -> str:
    return request.param


@pytest.mark.parametrize("in_one_parent", [False, pytest.param(True, marks=only_1)])
def test_two_imports_of_one_file(in_one_parent, mode, tmp_path):
    source, rng = new_family(mode), np.random.default_rng(3)
    names = ["teacher_", "student_"] if in_one_parent else ["", ""]
    teacher, student = (imported(source.net, tmp_path, mode, name) for name in names)
    if in_one_parent:
        both = gluon.contrib.nn.HybridConcurrent(axis=1)
        both.add(teacher.net, student.net)
        both.hybridize(**MODES[mode])
    for step in range(4):
        x = batch(rng)
        if in_one_parent:
            train_after(both, x)
            teacher.train("net", x)
        else:
            train_after(student.net, x, before=teacher.net if step % 2 else lambda x: None)
        student.train("net", x)
        teacher.check()
        student.check()


def bucketing_module(symbol: mx.sym.Symbol) -> mx.mod.BaseModule:
    """A module with the buckets of the shapes that follow bound ahead."""
    made = mx.mod.BucketingModule(lambda _: (symbol, ["data"], None), 4, context=contexts(2))
    made.bind([("data", (4, CHANNELS, 4))])
    made.init_params()
    made.init_optimizer(optimizer_params={"learning_rate": 0})
    for length in (2, 3):
        made.switch_bucket(length, [("data", (4, CHANNELS, length))])
    return made


def reshaped_module(symbol: mx.sym.Symbol) -> mx.mod.BaseModule:
    """A module that is reshaped before the first batch."""
    made = mx.mod.Module(symbol, label_names=None, context=contexts(2))
    made.bind([("data", (4, CHANNELS, 3))])
    made.init_params()
    made.init_optimizer(optimizer_params={"learning_rate": 0})
    made.reshape([("data", (6, CHANNELS, 3))])
    return made


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (bucketing_module, [(4, length) for length in (2, 3, 4) * 2]),
        (reshaped_module, [(size, 3) for size in (6, 6, 4, 6)]),
    ],
)
@only_1
def test_modules(make, shapes):
    layer = gluon_syncbn.SyncBatchNorm(in_channels=CHANNELS, momentum=MOMENTUM, num_devices=2)
    layer.initialize(ctx=contexts(2))
    module = make(mx.sym.make_loss(layer(mx.sym.var("data"))))
    expected, rng = Statistics(), np.random.default_rng(4)
    for size, length in shapes:
        x = rng.standard_normal((size, CHANNELS, length)).astype("float32")
        data = [nd.array(x)], None, None, None, length, [("data", x.shape)]
        module.forward(mx.io.DataBatch(*data), is_train=True)
        module.backward()
        module.update()
        expected.move(x)
        assert relative_error(module.get_outputs()[0].asnumpy(), normalize(x)) < 1e-5
        mx.nd.waitall()
        _, aux = module.get_params()
        (mean,) = (value for name, value in aux.items() if name.endswith("running_mean"))
        np.testing.assert_allclose(mean.asnumpy(), expected.possible[0][0], rtol=1e-5, atol=1e-6)


ACTIONS = [
    *("train", "train after inference", "train without backward", "infer on one device"),
    *("copy", "import", "hybridize again", "check"),
]
NUMBERS = st.integers(0, 9)
PROGRAM = st.lists(
    st.tuples(st.sampled_from(ACTIONS), NUMBERS, NUMBERS, st.integers(2, 6)),
    min_size=3,
    max_size=12,
)


@examples(10)
@given(program=PROGRAM)
@pytest.mark.parametrize("mode", MODES)
def test_any_program(mode, tmp_path_factory, program):
    """Actions on families of networks; all are compared with float64 lists of training passes."""
    folder = tmp_path_factory.mktemp("program")
    families, rng = [new_family(mode)], np.random.default_rng(len(program))
    for action, of_family, of_callable, size in program:
        family = families[of_family % len(families)]
        name = sorted(family.callables)[of_callable % len(family.callables)]
        net = family.callables[name]
        x = batch(rng, size)
        if action == "train":
            train_after(net, x)
            family.train(name, x)
        elif action == "train after inference":
            others = list(families[-1].callables.values())
            train_after(net, x, before=others[of_family % len(others)])
            family.train(name, x)
        elif action == "infer on one device":
            net(nd.array(x[: size // 2], ctx=contexts(1)[0]))
        elif action == "train without backward" and mode != "static_shape":
            with autograd.train_mode():
                for shard in shards(x):
                    net(shard)
            family.train(name, x)
        elif action in ("copy", "import") and len(families) < 4 and isinstance(family.net, Net):
            if action == "import" or IS_2:
                twin = imported(family.net, folder, mode)
            else:
                mx.nd.waitall()
                family.net.hybridize(False)  # a compiled graph cannot be copied
                copied = copy.deepcopy(family.net)
                reset_ctx(copied, contexts(2))  # MXNet puts all copies on cpu(0)
                family.net.hybridize(**MODES[mode])
                twin = Family(copied, _callables(copied, mode), mode)
            twin.shared, twin.other = copy.deepcopy((family.shared, family.other))
            families.append(twin)
        elif action == "hybridize again" and mode != "imperative":
            net.hybridize(**MODES[mode])
        # In a static_shape graph MXNet orders nothing through running statistics, so passes of
        # different graphs come in any order.
        if action == "check" or mode == "static_shape":
            for each in families:
                each.check()
    for each in families:
        each.check()
