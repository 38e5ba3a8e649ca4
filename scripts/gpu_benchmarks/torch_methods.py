"""PyTorch's batch normalization: the layer, and the primitives that SyncBatchNorm is made of."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_benchmarks.bridge import EPS, MOMENTUM
from gpu_benchmarks.cases import Case
from gpu_benchmarks.device import Slot
from gpu_benchmarks.methods import Method, Step

NEW_WEIGHT = 1 - MOMENTUM  # what PyTorch calls momentum


class _Shards:
    """Data of each context, and streams of their own where there are several."""

    def __init__(
        self, torch: Any, case: Case, slots: Sequence[Slot], permutes: bool = True
    ) -> None:
        self.torch, self.slots = torch, slots
        self._permutes = case.channel_last and permutes
        several = case.contexts > 1
        self.streams = [torch.cuda.Stream() for _ in range(case.contexts)] if several else []

    def on(self, context: int) -> Any:
        """Work on the stream of a context."""
        if not self.streams:
            return contextlib.nullcontext()
        return self.torch.cuda.stream(self.streams[context])

    def image(self, array: Any, slot: int, context: int) -> Any:
        """Return a context's part as layers want it: (batch, channels, side, side), or as it is."""
        shard = self.slots[slot].shard(array, context)
        return shard.permute(0, 3, 1, 2) if self._permutes else shard

    def whole(self, shards: Sequence[Any]) -> Any:
        """Put images together as the data of a slot is."""
        whole = self.torch.cat(list(shards))
        return whole.permute(0, 2, 3, 1) if self._permutes else whole


class Layers:
    """A layer for each context, which do not synchronize: with autograd.

    Parameters
    ----------
    layer : callable
        Makes a layer for a number of channels.
    flags : callable
        Makes what to call forward in.
    permutes : bool
        Whether channel-last data is to be seen as (batch, channels, side, side).
    """

    def __init__(
        self,
        torch: Any,
        case: Case,
        slots: Sequence[Slot],
        layer: Callable[[int], Any],
        flags: Callable[[], Any] = contextlib.nullcontext,
        permutes: bool = True,
    ) -> None:
        self._torch, self._case, self._flags = torch, case, flags
        self._shards = _Shards(torch, case, slots, permutes)
        self.streams: Sequence[Any] = self._shards.streams
        self._layers = [layer(case.channels).cuda() for _ in range(case.contexts)]
        self._x = [
            [self._leaf(slot, i) for i in range(case.contexts)] for slot in range(len(slots))
        ]
        self._outputs: dict[int, list[Any]] = {}
        self._gradients: dict[int, list[Any]] = {}
        self.parts: Mapping[str, Step] = {"forward": self._forward, "backward": self._backward}

    def _leaf(self, slot: int, context: int) -> Any:
        x = self._shards.image(self._shards.slots[slot].x, slot, context)
        return x.detach().requires_grad_()

    def _set_parameters(self, slot: int) -> None:
        arrays = self._shards.slots[slot]
        with self._torch.no_grad():
            for layer in self._layers:
                layer.weight.copy_(arrays.gamma)
                layer.bias.copy_(arrays.beta)

    def _forward(self, slot: int) -> None:
        outputs = []
        with self._flags():
            for context, layer in enumerate(self._layers):
                with self._shards.on(context):
                    outputs.append(layer(self._x[slot][context]))
        self._outputs[slot] = outputs

    def _backward(self, slot: int) -> None:
        gradients = []
        for context, out in enumerate(self._outputs.pop(slot)):
            layer = self._layers[context]
            dy = self._shards.image(self._shards.slots[slot].dy, slot, context)
            with self._shards.on(context):
                wanted = [self._x[slot][context], layer.weight, layer.bias]
                gradients.append(self._torch.autograd.grad(out, wanted, dy))
        self._gradients[slot] = gradients

    def results(self, slot: int) -> dict[str, Any]:
        """Of one context alone: several layers do not compute what the whole batch gives."""
        if self._case.contexts > 1:
            return {}
        self._set_parameters(slot)
        self._forward(slot)
        (out,) = self._outputs[slot]
        self._backward(slot)
        ((dx, dgamma, dbeta),) = self._gradients.pop(slot)
        y, dx = (self._shards.whole([array]) for array in (out, dx))
        return {"y": y, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}

    def close(self) -> None:
        self._outputs.clear()
        self._gradients.clear()


class Primitives:
    """What torch.nn.SyncBatchNorm runs, with the gathering among contexts done by small kernels."""

    def __init__(self, torch: Any, case: Case, slots: Sequence[Slot]) -> None:
        self._torch, self._case, self._slots = torch, case, slots
        self._shards = _Shards(torch, case, slots)
        self.streams: Sequence[Any] = self._shards.streams
        samples = case.batch // case.contexts * case.side**2
        self._counts = slots[0].mean.new_full((case.contexts,), samples)
        self._int_counts = self._counts.to(torch.int32)
        self._statistics: dict[int, list[tuple[Any, Any]]] = {}
        self._outputs: dict[int, list[tuple[Any, ...]]] = {}
        self._messages: dict[int, list[tuple[Any, Any]]] = {}
        self.parts: Mapping[str, Step] = {"forward": self._forward, "backward": self._backward}

    def _gather(self, slot: int, messages: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Give each context the messages of all, stacked, behind what writes them."""
        torch = self._torch
        # PyTorch would use their memory again before the other streams have read it.
        self._messages[slot] = messages
        for stream in self.streams:
            for other in self.streams:
                if other is not stream:
                    stream.wait_stream(other)
        gathered = []
        for context in range(self._case.contexts):
            with self._shards.on(context):
                gathered.append(tuple(torch.stack(each) for each in zip(*messages)))
        return gathered

    def _forward(self, slot: int) -> None:
        torch, arrays = self._torch, self._slots[slot]
        images = [self._shards.image(arrays.x, slot, i) for i in range(self._case.contexts)]
        messages = []
        for context, x in enumerate(images):
            with self._shards.on(context):
                messages.append(torch.batch_norm_stats(x, EPS))
        statistics, outputs = [], []
        for context, (means, inv_stds) in enumerate(self._gather(slot, messages)):
            with self._shards.on(context):
                x = images[context]
                mean, inv_std = torch.batch_norm_gather_stats_with_counts(
                    x,
                    means,
                    inv_stds,
                    arrays.mean[context],
                    arrays.var[context],
                    NEW_WEIGHT,
                    EPS,
                    self._counts,
                )
                out = torch.batch_norm_elemt(x, arrays.gamma, arrays.beta, mean, inv_std, EPS)
                statistics.append((mean, inv_std))
                outputs.append((out,))
        self._statistics[slot], self._outputs[slot] = statistics, outputs

    def _backward(self, slot: int) -> None:
        torch, arrays = self._torch, self._slots[slot]
        messages, gradients = [], []
        for context, (mean, inv_std) in enumerate(self._statistics[slot]):
            x, dy = (self._shards.image(a, slot, context) for a in (arrays.x, arrays.dy))
            with self._shards.on(context):
                sum_dy, sum_dy_xmu, dgamma, dbeta = torch.batch_norm_backward_reduce(
                    dy, x, mean, inv_std, arrays.gamma, True, True, True
                )
            messages.append((sum_dy, sum_dy_xmu))
            gradients.append((dgamma, dbeta))
        for context, sums in enumerate(self._gather(slot, messages)):
            mean, inv_std = self._statistics[slot][context]
            x, dy = (self._shards.image(a, slot, context) for a in (arrays.x, arrays.dy))
            with self._shards.on(context):
                dx = torch.batch_norm_backward_elemt(
                    dy,
                    x,
                    mean,
                    inv_std,
                    arrays.gamma,
                    sums[0].sum(0),
                    sums[1].sum(0),
                    self._int_counts,
                )
            self._outputs[slot][context] += (dx, *gradients[context])

    def results(self, slot: int) -> dict[str, Any]:
        self._forward(slot)
        self._backward(slot)
        self._torch.cuda.synchronize()
        outs, dxs, dgammas, dbetas = zip(*self._outputs.pop(slot))
        return {
            "y": self._shards.whole(outs),
            "dx": self._shards.whole(dxs),
            "dgamma": sum(dgammas),
            "dbeta": sum(dbetas),
        }

    def close(self) -> None:
        self._statistics.clear()
        self._messages.clear()
        self._outputs.clear()


def torch_methods(torch: Any, case: Case, slots: Sequence[Slot]) -> dict[str, Callable[[], Method]]:
    """Return what makes each method of PyTorch for a case, and apex's where it is installed."""

    def layer(channels: int) -> Any:
        return torch.nn.BatchNorm2d(channels, eps=EPS, momentum=NEW_WEIGHT)

    def without_cudnn() -> Any:
        return torch.backends.cudnn.flags(enabled=False)

    methods: dict[str, Callable[[], Method]] = {
        "torch_primitives": lambda: Primitives(torch, case, slots),
        "torch_native": lambda: Layers(torch, case, slots, layer, without_cudnn),
    }
    if torch.backends.cudnn.is_available():
        methods["torch_cudnn"] = lambda: Layers(torch, case, slots, layer)
    if case.contexts == 1 and importlib.util.find_spec("apex"):
        from apex.parallel import SyncBatchNorm

        def apex_layer(channels: int) -> Any:
            return SyncBatchNorm(
                channels, eps=EPS, momentum=NEW_WEIGHT, channel_last=case.channel_last
            )

        # It takes arrays whose last axis is that of the channels as they are.
        methods["apex"] = lambda: Layers(torch, case, slots, apex_layer, permutes=False)
    return methods
