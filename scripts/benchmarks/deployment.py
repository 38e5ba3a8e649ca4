"""Inference of a network with our layer, and of the plain symbols that it exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Deployment:
    """Inference of one network: "ours" as it is trained, "exported" as a plain symbol, or "folded".

    Whoever makes "ours" writes the files of the other two to ``case["folder"]``.
    """

    def __init__(self, method: str, case: Mapping[str, Any]) -> None:
        import mxnet as mx

        generator = np.random.default_rng(0)
        shape = (case["images"], 3, case["side"], case["side"])
        self._images = mx.nd.array(np.asarray(generator.standard_normal(shape), np.float32))
        self._wait = mx.nd.waitall
        folder = Path(case["folder"])
        # What differs between the exported files and with oneDNN is the method's name.
        kind = method.split("_")[0]
        self._net = self._train(case, folder) if kind == "ours" else _load(folder / kind)
        self._net.hybridize(static_alloc=True)

    def __call__(self) -> None:
        self._outputs = self._net(self._images)
        self._wait()

    def _train(self, case: Mapping[str, Any], folder: Path) -> Any:
        """Build the network, move its running statistics, and export it."""
        import gluon_syncbn
        import mxnet as mx

        from demo.networks import Design, Norm, build, save_initial_weights

        design = Design(case["model"], case["backbone"], 21, case["side"])
        weights = folder / "initial.params"
        save_initial_weights(design, 0, weights)
        net = build(design, Norm(gluon_syncbn.SyncBatchNorm), [mx.cpu()], weights)
        net.hybridize()
        with mx.autograd.train_mode():
            net(self._images)
        net(self._images)
        for kind in ("exported", "folded"):
            gluon_syncbn.export(net, folder / kind, fold=kind == "folded")
        return net


def _load(path: Path) -> Any:
    from mxnet import gluon

    return gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
