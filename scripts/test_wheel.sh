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
programs="$(realpath "$(dirname "${BASH_SOURCE[0]}")/../tests/programs")"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

for python in "$@"; do
  work="$folder/work"
  rm -rf "$work" "$folder/venv"
  mkdir "$work"
  printf '\nwheel: %s\n' "$("$python" --version)"
  "$python" -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "${wheel}[$extra]"
  cd "$work"
  alone() { env -i HOME="$work" PATH="$folder/venv/bin" "$folder/venv/bin/python" -W ignore "$@"; }
  alone "$programs/installed_wheel.py"
  alone -m gluon_syncbn export net-symbol.json net-0000.params plain --fold
  alone "$programs/stock_mxnet.py" plain-symbol.json plain-0000.params .
  alone -m gluon_syncbn diagnose
  cd - >/dev/null
  echo "wheel: ok"
done
