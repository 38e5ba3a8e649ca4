"""The cost model's arithmetic against closed forms, its inputs, and the tables in the docs."""

from __future__ import annotations

import re

import mxnet as mx
import pytest
from mxnet import gluon

import cost_model as model
import doc_table
from tests.support.processes import ROOT

A, B, C, D, M = 2.0, 1 / 10, 7.0, 1 / 3, 4  # latency, seconds a byte: inside, between; per machine
CLUSTER = model.Cluster("test", model.Link(A, 1 / B), model.Link(C, 1 / D), per_machine=M)


@pytest.mark.parametrize("size", [0.1, 24.0, 1e6])
@pytest.mark.parametrize(("inside", "between"), [(0, 0), (1, 0), (2, 0), (2, 1), (2, 3)])
def test_collectives(inside, between, size):
    """Rounds within a machine, and between machines whose M processes share a port."""
    p = 2 ** (inside + between)
    a, b = (C, D) if between else (A, B)
    doubling = inside * (A + size * B) + between * (C + M * size * D)
    tree = 2 * (inside * (A + size * B) + between * (C + size * D))
    ring = 2 * (p - 1) * (a + size / p * b)
    near = min(p, M)
    gathered = inside * A + (near - 1) * size * B + between * C + M * (p - near) * size * D
    assert CLUSTER.doubling(p, size) == pytest.approx(doubling)
    assert CLUSTER.allreduce(p, size) == pytest.approx(min(doubling, tree, ring))
    expected = 0.5 + min(gathered, (p - 1) * (a + size * b))
    assert CLUSTER._replace(start=0.5).allgather(p, size) == pytest.approx(expected)


def test_a_step_by_hand():
    """Four processes on one machine, in groups of two: one message of 2 s and 10 bytes/s."""
    bits = 2 + 1024 / 8 / 10
    negotiation = 2 * bits + bits  # two rounds among four, one among two
    # Negotiating takes longer than the cycle of 0.5 s; four even starts span 3/5 of a cycle.
    around = 2 * (1.5 * negotiation + 0.3 + 0.4e-3)
    gathered = sum(2 + 8 * (9 + 2 * channels) / 10 + 2 * channels * 2e-9 for channels in (3, 12))
    reduced = sum(2 + 8 * (1 + 2 * channels) / 10 for channels in (3, 12))
    case = (CLUSTER, 500.0, [[3], [5, 7]], 4, 2)
    assert model.step(*case) == pytest.approx(2e3 * (around + gathered), rel=1e-12)
    assert model.step(*case, reduce=True) == pytest.approx(2e3 * (around + reduced), rel=1e-12)


def test_the_largest_group_keeps_to_the_budget():
    case = (CLUSTER, 500.0, [[3], [5, 7]], 16)
    cost = {group: model.step(*case, group) for group in (2, 4, 8, 16)}
    for group, budget in cost.items():
        assert model.largest_group(*case, budget) == group
    assert model.largest_group(*case, cost[2] * 0.99) == 1


def test_the_header_is_that_of_the_messages():
    source = (ROOT / "src" / "distributed" / "message.cc").read_text()
    (names,) = re.findall(r"enum : std::size_t \{(.*?),\s*kHeaderSize\s*\}", source, re.DOTALL)
    assert len(names.split(",")) == model.HEADER


def test_levels_of_a_graph():
    net, branches = gluon.nn.HybridSequential(), gluon.contrib.nn.HybridConcurrent(axis=1)
    for channels in (4, 5):
        branches.add(gluon.nn.HybridSequential())
        branches[-1].add(gluon.nn.Conv2D(channels, 1), gluon.nn.BatchNorm())
    branches.add(gluon.nn.Conv2D(2, 1))
    net.add(gluon.nn.Conv2D(3, 1), gluon.nn.BatchNorm(), branches, gluon.nn.BatchNorm())
    assert model.levels_of(net(mx.sym.var("data")), size=8) == [[3], [4, 5], [11]]


def test_the_docs_have_the_tables_that_the_script_writes(tmp_path, capsys):
    model.main(["--out", str(tmp_path)])
    assert doc_table.read(model.PATH, model.BEGIN) == capsys.readouterr().out.strip()
    assert "<svg" in (tmp_path / "cost_model.svg").read_text()
