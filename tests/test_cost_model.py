"""The cost model's formulas against simulated rounds, its inputs, and the tables in the docs."""

from __future__ import annotations

import itertools
import re

import mxnet as mx
import pytest
from gluoncv.model_zoo import FCN
from mxnet import gluon

import doc_table
from scaling import collectives, model, report
from scaling.links import Cluster, Link
from scaling.networks import levels_of, networks

from .processes import ROOT

CLUSTER = Cluster("test", Link(2.0, 10.0, ""), Link(7.0, 3.0, ""), per_machine=4)
SIZE = 24
SOFTWARE = model.Software(cycle=0.5, handling=0.25, merging=0.125)


class Simulation:
    """Processes that hold contributions, and a clock that every round of messages moves on."""

    def __init__(self, processes: int):
        self.held = [{rank} for rank in range(processes)]
        self.seconds = 0.0

    def round(self, messages: dict[tuple[int, int], tuple[set[int], float]]) -> None:
        """Deliver ``{(from, to): (contributions, bytes)}``; the slowest decides.

        Messages that leave a machine at the same time share its port.
        """
        machine = CLUSTER.per_machine
        leaving: dict[int, float] = {}
        for (source, target), (_, size) in messages.items():
            if source // machine != target // machine:
                leaving[source // machine] = leaving.get(source // machine, 0.0) + size
        times = []
        for (source, target), (_, size) in messages.items():
            if source // machine == target // machine:
                times.append(CLUSTER.inside.latency + size / CLUSTER.inside.bandwidth)
            else:
                together = leaving[source // machine]
                times.append(CLUSTER.between.latency + together / CLUSTER.between.bandwidth)
        self.seconds += max(times)
        before = [set(held) for held in self.held]
        for (source, target), (contributions, _) in messages.items():
            assert contributions <= before[source], "sent what it did not have"
            self.held[target] |= contributions

    def done(self) -> bool:
        return all(held == set(range(len(self.held))) for held in self.held)


def swap(simulation: Simulation, distance: int, size: float | None) -> None:
    """All swap with a partner: `size` bytes, or SIZE for each contribution held."""
    simulation.round(
        {
            (rank, rank ^ distance): (set(held), SIZE * len(held) if size is None else size)
            for rank, held in enumerate(simulation.held)
        }
    )


@pytest.mark.parametrize("processes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize(
    ("formula", "size"),
    [(collectives.allgather_by_doubling, None), (collectives.allreduce_by_doubling, SIZE)],
)
def test_doubling(formula, size, processes):
    simulation = Simulation(processes)
    distance = 1
    while distance < processes:
        swap(simulation, distance, size)
        distance *= 2
    assert simulation.done()
    assert formula(CLUSTER, processes, SIZE) == pytest.approx(simulation.seconds, rel=1e-12)


@pytest.mark.parametrize("processes", [2, 4, 8, 16])
def test_rings(processes):
    gather = Simulation(processes)
    for step in range(processes - 1):
        gather.round(
            {
                (rank, (rank + 1) % processes): ({(rank - step) % processes}, SIZE)
                for rank in range(processes)
            }
        )
    assert gather.done()
    seconds = collectives.allgather_by_ring(CLUSTER, processes, SIZE)
    assert seconds == pytest.approx(gather.seconds, rel=1e-12)

    # Each process ends with one P-th of the sum after P - 1 steps; P - 1 more hand the parts round.
    reduce = Simulation(processes)
    parts = [[{rank} for _ in range(processes)] for rank in range(processes)]
    for step in range(2 * (processes - 1)):
        sent = [(rank - step) % processes for rank in range(processes)]
        moved = [set(parts[rank][sent[rank]]) for rank in range(processes)]
        reduce.held = [set().union(*own) for own in parts]
        reduce.round(
            {
                (rank, (rank + 1) % processes): (moved[rank], SIZE / processes)
                for rank in range(processes)
            }
        )
        for rank in range(processes):
            parts[(rank + 1) % processes][sent[rank]] |= moved[rank]
    assert all(part == set(range(processes)) for own in parts for part in own)
    seconds = collectives.allreduce_by_ring(CLUSTER, processes, SIZE)
    assert seconds == pytest.approx(reduce.seconds, rel=1e-12)


@pytest.mark.parametrize("processes", [2, 4, 8, 16, 32])
def test_tree(processes):
    simulation = Simulation(processes)
    distances = list(itertools.takewhile(lambda d: d < processes, (1 << k for k in range(9))))
    for distance in distances:
        simulation.round(
            {
                (rank, rank - distance): (set(simulation.held[rank]), SIZE)
                for rank in range(distance, processes, 2 * distance)
            }
        )
    assert simulation.held[0] == set(range(processes))
    for distance in reversed(distances):
        simulation.round(
            {
                (rank, rank + distance): (set(simulation.held[rank]), SIZE)
                for rank in range(0, processes, 2 * distance)
            }
        )
    assert simulation.done()
    seconds = collectives.allreduce_by_tree(CLUSTER, processes, SIZE)
    assert seconds == pytest.approx(simulation.seconds, rel=1e-12)


def test_processes_have_to_be_a_power_of_two():
    with pytest.raises(ValueError, match="processes=6 should be a power of two"):
        collectives.allgather(CLUSTER, 6, SIZE)


def test_a_step_by_hand():
    """Four processes on one machine, in groups of two: links of 2 s and 10 bytes/s."""
    job = model.Job(CLUSTER, processes=4, group=2, software=SOFTWARE)
    bits = 2 + model.CACHE_BITS / 8 / 10
    negotiation = 2 * bits + bits  # two rounds among four, one among two
    assert job.negotiation() == pytest.approx(negotiation)
    # Negotiating takes longer than the cycle of 0.5 s; four even starts span 3/5 of a cycle.
    assert job.waiting() == pytest.approx(negotiation / 2 + 0.3)
    around = 1.5 * negotiation + 0.3 + 0.25

    def gathered(channels: int) -> float:
        return around + 2 + 8 * (9 + 2 * channels) / 10 + 2 * channels * 0.125

    def reduced(channels: int) -> float:
        return around + 2 + 8 * (1 + 2 * channels) / 10

    levels = [(3,), (5, 7)]
    assert job.step(levels) == pytest.approx(2 * (gathered(3) + gathered(12)))
    assert job.step(levels, fused=False) == pytest.approx(2 * sum(map(gathered, (3, 5, 7))))
    assert job.step(levels, reduce=True) == pytest.approx(2 * (reduced(3) + reduced(12)))


def test_the_largest_group_keeps_to_the_budget():
    levels = [(3,), (5, 7)]
    cost = {group: model.Job(CLUSTER, 16, group, SOFTWARE).step(levels) for group in (2, 4, 8, 16)}
    for group, seconds in cost.items():
        assert model.largest_group(CLUSTER, 16, SOFTWARE, levels, seconds) == group
    assert model.largest_group(CLUSTER, 16, SOFTWARE, levels, cost[2] * 0.99) == 1


def test_the_header_is_that_of_the_messages():
    source = (ROOT / "src" / "core" / "process_message.cc").read_text()
    (names,) = re.findall(r"enum : std::size_t \{(.*?),\s*kHeaderSize\s*\}", source, re.DOTALL)
    assert len(names.split(",")) == model.HEADER


def test_levels_of_a_graph():
    net = gluon.nn.HybridSequential()
    branches = gluon.contrib.nn.HybridConcurrent(axis=1)
    for channels in (4, 5):
        branch = gluon.nn.HybridSequential()
        branch.add(gluon.nn.Conv2D(channels, 1), gluon.nn.BatchNorm())
        branches.add(branch)
    branches.add(gluon.nn.Conv2D(2, 1))
    net.add(gluon.nn.Conv2D(3, 1), gluon.nn.BatchNorm(), branches, gluon.nn.BatchNorm())
    assert levels_of(net(mx.sym.var("data")), size=8) == [(3,), (4, 5), (11,)]


def test_networks_are_gluoncvs():
    found = networks()
    net = FCN(nclass=2, backbone="resnet50", aux=True, pretrained_base=False, crop_size=32)
    norms: list[gluon.Block] = []
    net.apply(lambda block: norms.append(block) if isinstance(block, gluon.nn.BatchNorm) else None)
    assert sum(map(len, found["FCN-ResNet50"])) == len(norms)
    # PSPNet's four pooled branches and DeepLabV3's five exchange together.
    assert (512, 512, 512, 512) in found["PSPNet-ResNet50"]
    assert (256,) * 5 in found["DeepLabV3-ResNet50"]


def test_the_docs_have_the_tables_that_the_script_writes(tmp_path):
    assert doc_table.read(report.PATH, report.BEGIN) == report.tables()
    report.plot(tmp_path)
    assert "<svg" in (tmp_path / "cost_model.svg").read_text()
