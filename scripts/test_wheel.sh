#!/usr/bin/env bash
# Installs a wheel in an empty virtual environment of each PYTHON, and tests it there: training, both
# exports, loading the exported files without this package, and diagnose. Runs outside of the
# repository, with no compiler in PATH.
#
#   scripts/test_wheel.sh [--mxnet2] WHEEL PYTHON...
#
#   --mxnet2  installs MXNet 2 with it
#
#   scripts/test_wheel.sh dist/gluon_syncbn-*.whl python3.8 python3.11
#   scripts/test_wheel.sh --mxnet2 dist/gluon_syncbn-*.whl python3.11
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
extra=cpu
if [[ "${1:-}" == --mxnet2 ]]; then
  extra=mxnet2
  shift
fi
if (($# < 2)) || [[ "$1" != *.whl ]]; then
  "$0" --help >&2
  exit 2
fi
wheel="$(realpath "$1")"
shift
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

cat >"$folder/train.py" <<'END'
import os
import shutil
import sys

import gluon_syncbn
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

random = mx.np.random if mx.__version__.startswith("2.") else mx.nd.random

assert gluon_syncbn.__file__.startswith(sys.prefix), gluon_syncbn.__file__
assert not any(map(shutil.which, ("c++", "g++", "gcc", "cc"))), os.environ["PATH"]
contexts = [mx.cpu(0), mx.cpu(1)]
net = nn.HybridSequential()
net.add(nn.Conv2D(8, 3), gluon_syncbn.SyncBatchNorm(), nn.Activation("relu"), nn.Dense(2))
net.initialize(mx.init.Xavier(), ctx=contexts)
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
shards = gluon.utils.split_and_load(random.normal(0, 1, (8, 3, 8, 8)), contexts)
losses = []
for _ in range(5):
    with autograd.record():
        parts = [((net(shard) - 1) ** 2).mean() for shard in shards]
    autograd.backward(parts)
    trainer.step(2)
    losses.append(sum(part.asnumpy().sum() for part in parts))
assert losses[-1] < losses[0], losses
gluon_syncbn.check_in_sync(net)
net.export("net")
x = random.normal(0, 1, (2, 3, 8, 8))
np.savez("expected", x=x.asnumpy(), expected=net(x).asnumpy())
print("losses", losses)
END
cat >"$folder/load.py" <<'END'
import sys

import mxnet as mx
import numpy as np
from mxnet import gluon

data = np.load("expected.npz")
array = mx.np.array if mx.__version__.startswith("2.") else mx.nd.array
net = gluon.SymbolBlock.imports("plain-symbol.json", ["data"], "plain-0000.params")
assert "gluon_syncbn" not in sys.modules
difference = abs(net(array(data["x"])).asnumpy() - data["expected"]).max()
assert difference < 1e-4, difference
END

for python in "$@"; do
  work="$folder/work"
  rm -rf "$work" "$folder/venv"
  mkdir "$work"
  printf '\nwheel: %s\n' "$("$python" --version)"
  "$python" -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel[$extra]"
  cd "$work"
  alone() { env -i HOME="$work" PATH="$folder/venv/bin" "$folder/venv/bin/python" -W ignore "$@"; }
  alone "$folder/train.py"
  alone -m gluon_syncbn export net-symbol.json net-0000.params plain --fold
  alone "$folder/load.py"
  alone -m gluon_syncbn diagnose
  cd - >/dev/null
  echo "wheel: ok"
done
