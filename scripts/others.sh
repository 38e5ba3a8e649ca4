#!/usr/bin/env bash
# Runs programs that this project did not write, with gluon_syncbn and without it, and prints a table
# of what differs. For maintainers: it needs sources that are not here, and hours.
#
#   scripts/others.sh [--mxnet FOLDER] [--gluoncv FOLDER] [--simpledet FOLDER --mxnext FOLDER]
#                     [--fork FOLDER] [--insightface FOLDER] [--resnest FOLDER] [--imgclsmob FOLDER]
#                     [--tests NAME ...]
#
#   --mxnet        apache/mxnet at tag 1.9.1: tests/python/unittest, example/image-classification
#   --gluoncv      dmlc/gluon-cv: its training scripts, and tests of networks
#   --simpledet    TuSimple/simpledet, with --mxnext (RogerChern/mxnext): backbones and DetModule
#   --fork         smolix/mxnet: its Python package on the library of MXNet 2.0.0b1, with the tests
#                  of scripts/test.sh --mxnet2
#   --insightface  deepinsight/insightface: recognition/arcface_mxnet
#   --resnest      zhanghang1989/ResNeSt
#   --imgclsmob    osmr/imgclsmob
#   --tests        of MXNet's test files, these only: --tests gluon_rnn module
#
# Rows of earlier runs stay in the table (build/others/rows.json). Logs are in build/others too.
# docs/others.md has the table of the last run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
build="$repository/build/others"

# pynose: MXNet's tests import nose, which Python 3.11 cannot. pytest 8 lacks nose's setup.
PYTHON=python3.11 environment "$build/venv" \
  --constraint <(grep -v '^pytest==' "$repository/scripts/constraints.txt") \
  mxnet==1.9.1 numpy gluoncv matplotlib opencv-python pandas scipy scipy-openblas32 \
  'scikit-learn<1.7' easydict pillow tqdm 'pytest<8' pytest-timeout pynose

# The repository itself would offer its tests and scripts as modules.
mkdir -p "$build/ours"
ln -sfn "$repository/gluon_syncbn" "$build/ours/gluon_syncbn"
export PYTHONPATH="$build/ours:$repository/scripts"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONWARNINGS=ignore
exec "$build/venv/bin/python" -m others "$@"
