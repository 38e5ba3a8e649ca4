"""Export a trained network for programs that have MXNet or ONNX Runtime, but not this package.

Writes plain BatchNorm, then the same with norms folded into convolutions, and ONNX. Then it
serves the files in processes of their own, MXNet with oneDNN and ONNX Runtime, and draws scores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon.model_zoo import vision

# What a server runs: no gluon_syncbn, so MXNet keeps oneDNN on.
MXNET_SERVER = """
import sys, time
import mxnet as mx, numpy as np
prefix, data, answer = sys.argv[1:]
net = mx.gluon.SymbolBlock.imports(prefix + "-symbol.json", ["data"], prefix + "-0000.params")
net.hybridize(static_alloc=True, static_shape=True)
x = mx.nd.array(np.load(data))
np.save(answer, net(x).asnumpy())
begin = time.perf_counter()
for _ in range(10):
    net(x).wait_to_read()
print(f"{(time.perf_counter() - begin) * 100:.1f}")
assert "gluon_syncbn" not in sys.modules
"""
ONNX_SERVER = """
import sys, time
import numpy as np, onnxruntime
file, data, answer = sys.argv[1:]
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
feed = {session.get_inputs()[0].name: np.load(data)}
np.save(answer, session.run(None, feed)[0])
begin = time.perf_counter()
for _ in range(10):
    session.run(None, feed)
print(f"{(time.perf_counter() - begin) * 100:.1f}")
"""


def main() -> None:
    """Train a little, export, serve, and compare with the network itself."""
    options = parse_arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    prefix, shape = str(options.out / "net"), (1, 3, options.side, options.side)
    net = train(options.side)
    image = mx.nd.random.normal(shape=shape)
    data = options.out / "data.npy"
    np.save(data, image.asnumpy())
    expected = net(image).asnumpy()

    gluon_syncbn.export(net, prefix)
    gluon_syncbn.export(net, f"{prefix}-folded", fold=True)
    command = ["-m", "gluon_syncbn", "export", "net-symbol.json", "net-0000.params", "net-onnx"]
    command += ["--fold", "--onnx", "net.onnx", "--input-shape", ",".join(map(str, shape))]
    interpreter = [sys.executable, "-W", "ignore"]
    run([*interpreter, *command], cwd=options.out)

    servers = {
        "BatchNorm": (MXNET_SERVER, prefix),
        "folded norms": (MXNET_SERVER, f"{prefix}-folded"),
        "ONNX Runtime": (ONNX_SERVER, f"{prefix}.onnx"),
    }
    scores = {"the network itself": expected}
    for title, (program, file) in servers.items():
        answer = options.out / "answer.npy"
        time = serve(program, file, data, answer)
        error = np.abs(np.load(answer) - expected).max() / np.abs(expected).max()
        print(f"{title:14} {time} ms an image, differs by {error:.0e}")
        scores[title] = np.load(answer)
    draw_scores(options.out / "serving.png", scores)


def train(side: int) -> gluon.HybridBlock:
    """Train a ResNet-18 for three steps on two contexts, and return it on one."""
    mx.random.seed(0)
    ctx = [mx.cpu(0), mx.cpu(1)]
    net = vision.resnet18_v1(classes=10)
    gluon_syncbn.convert_sync_batchnorm(net)
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    for _ in range(3):
        xs = [mx.nd.random.normal(shape=(2, 3, side, side), ctx=c) for c in ctx]
        with autograd.record():
            losses = [criterion(net(x), mx.nd.array([1, 2], ctx=x.context)) for x in xs]
        autograd.backward(losses)
        trainer.step(4)
    net.collect_params().reset_ctx(ctx[0])
    return net


def serve(program: str, file: str, data: Path, answer: Path) -> str:
    """Run a server for one image, and return its time."""
    command = [sys.executable, "-W", "ignore", "-c", program, file, str(data), str(answer)]
    # The import of gluon_syncbn has switched oneDNN off for itself and its children.
    environment = {name: value for name, value in os.environ.items() if "MKLDNN" not in name}
    return run(command, env=environment)


def run(command: list[str], **settings: Any) -> str:
    """Run a command and return what it prints. If it fails, end with its error."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    if result.returncode:
        sys.exit(result.stderr)
    return result.stdout.strip()


def draw_scores(path: Path, scores: dict[str, np.ndarray]) -> None:
    """Draw the scores of all classes, by the network and by each server."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 3))
    width = 0.8 / len(scores)
    for place, (title, values) in enumerate(scores.items()):
        axis.bar(np.arange(values.size) + place * width, values[0], width, label=title)
    axis.set(title="Every server gives the scores of the network", xlabel="class", ylabel="score")
    axis.set_xticks(np.arange(values.size) + 0.4 - width / 2, range(values.size))
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"scores: {path}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=64, help="side of an image (64)")
    parser.add_argument("--out", type=Path, default=Path("runs/serving"), help="folder for files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
