#!/usr/bin/env bash
# Makes or updates .venv in the repository, with pinned dependencies and the project itself in place
# ("pip install -e ."). Edits of Python files take effect at once, edits of C++ files with the next
# run of this script. If nothing has changed it does nothing, so other scripts call it first.
#
#   scripts/setup.sh [--test] [--distributed]
#
#   --test         also installs the tools of the tests and the linters. doctest's header comes from
#                  the system's packages, if this user may call apt-get.
#   --distributed  also builds Horovod with MXNet, gloo and Open MPI. Open MPI comes from the system's
#                  packages, if this user may call apt-get; otherwise Horovod has gloo alone.
#
# Environment:
#   PYTHON              the interpreter that makes .venv (default: the first of python3, python3.11,
#                       ..., python3.8 that is a Python 3.8 to 3.11)
#   GLUON_SYNCBN_MXNET  the MXNet to install: cpu, cu112, or cu112-toolkit without the libraries of
#                       CUDA 11, for a system that has them. The default is cu112 if there is an
#                       NVIDIA driver, and cpu otherwise.
#   CUDACXX             the nvcc for Horovod's own kernels (scripts/install_horovod.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
venv="$root/.venv"
log="$venv/setup.log"
state="$venv/.gluon_syncbn"

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}

want_test=0
want_distributed=0
for option in "$@"; do
  case "$option" in
    --test) want_test=1 ;;
    --distributed) want_distributed=1 ;;
    -h | --help) exec "$0" --help ;;
    *) die "unknown option $option (try --help)" ;;
  esac
done

# A second set-up waits here until the first one ends.
exec 9<"scripts/setup.sh"
flock 9

# Runs a command and writes its output to the log. If it fails, shows the end of the log and returns 1.
try_logged() {
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null 9<&- || {
    tail -n 40 "$log" >&2
    say "failed: $* (all output: $log)" >&2
    return 1
  }
}
logged() { try_logged "$@" || exit 1; }

supported='import sys; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 11))'

find_python() {
  local candidate
  if [[ -n "${PYTHON:-}" ]]; then
    "$PYTHON" -c "$supported" 2>/dev/null || die "$PYTHON is not a Python 3.8 to 3.11"
    printf '%s\n' "$PYTHON"
    return
  fi
  for candidate in python3 python3.11 python3.10 python3.9 python3.8; do
    if "$candidate" -c "$supported" >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "no Python 3.8 to 3.11 found (MXNet 1.9.1 does not run on later ones); set PYTHON"
}

# Installs the Debian packages "$2"... if this user may. Otherwise says what to install for "$1", and
# returns 1.
system_packages() {
  local purpose="$1" as_root=()
  shift
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
      say "missing for $purpose, please install: $*"
      return 1
    fi
    as_root=(sudo -n)
  fi
  if ! command -v apt-get >/dev/null; then
    say "missing for $purpose, please install what Debian calls: $*"
    return 1
  fi
  say "installing the system packages $* ($purpose)"
  try_logged "${as_root[@]}" apt-get update -q &&
    try_logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends "$@"
}

stamped() { [[ "$(cat "$state/$1" 2>/dev/null)" == "$2" ]]; }

## The environment

if [[ "$("$venv/bin/python" -c 'import sys; print(sys.prefix)' 2>/dev/null)" != "$venv" ]]; then
  python="$(find_python)"
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python has no venv and ensurepip modules (Debian: apt-get install python3-venv)"
  say "making .venv with $("$python" --version)"
  "$python" -m venv --clear "$venv" || die "$python -m venv failed"
fi
mkdir -p "$state"
export PATH="$venv/bin:$PATH"
version="$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"

## What to install

mxnet="${GLUON_SYNCBN_MXNET:-}"
has_driver() { "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; }
if [[ -z "$mxnet" ]]; then
  mxnet=cpu
  if [[ "$(uname -m)" == x86_64 ]] && has_driver; then mxnet=cu112; fi
fi
case "$mxnet" in
  cpu | cu112 | cu112-toolkit) ;;
  *) die "GLUON_SYNCBN_MXNET is '$mxnet': expected cpu, cu112 or cu112-toolkit" ;;
esac
extras="$mxnet,demo"
# The tools of the tests stay in .venv even if this run does not ask for them.
if ((want_test)) || [[ -e "$state/test" ]]; then
  extras+=",gluoncv,onnx,test,lint"
fi

dependencies="$version $extras $(cat pyproject.toml setup.py gluon_syncbn/_version.py scripts/constraints.txt)"

## Installing

: >"$log"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
  die "no C++ compiler found (Debian: apt-get install g++)"
# The tests build in this folder too, and treat warnings as errors.
build_library() {
  local warnings=()
  if ((want_test)); then warnings=(-DGLUON_SYNCBN_WERROR=ON); fi
  logged build build/native-plain gluon_syncbn ${warnings[@]+"${warnings[@]}"}
  logged cmake --install build/native-plain --prefix .
}

install_all() {
  say "installing gluon_syncbn and its dependencies [$extras]; this can take minutes"
  rm -f "$state/dependencies"
  # An earlier pip cannot install this project in place.
  logged "${pip[@]}" install $(pins_for python) 'pip>=22' 'cmake>=3.20' ninja
  # Both builds of MXNet install the module "mxnet", so the old one must go first.
  if ! stamped mxnet "$mxnet"; then
    logged "${pip[@]}" uninstall -q -y mxnet mxnet-cu112
  fi
  build_library &
  # One call installs all packages, so that pip sees all constraints on NumPy.
  logged env GLUON_SYNCBN_WITHOUT_LIBRARY=1 "${pip[@]}" install $(pins_for python) \
    --editable ".[$extras]"
  wait $!
  # pip may have replaced a library that MXNet loads. An import shows whether all still load.
  logged "$venv/bin/python" -W ignore -c 'import gluon_syncbn'
  printf '%s\n' "$mxnet" >"$state/mxnet"
  printf '%s\n' "$dependencies" >"$state/dependencies"
}

if stamped dependencies "$dependencies"; then build_library; else install_all; fi

if ((want_test)); then
  touch "$state/test"
  # opencv-python, a dependency of GluonCV, uses libraries that a machine without a desktop may lack.
  load_cv2() { "$venv/bin/python" -c 'import cv2'; }
  if ! load_cv2 2>/dev/null; then
    system_packages OpenCV libgl1 libglib2.0-0 || true
    load_cv2 2>>"$log" ||
      say "warning: OpenCV does not load, so the parts of GluonCV that use it will fail (see $log)"
  fi
  have_doctest() { "${CXX:-c++}" -fsyntax-only -include doctest/doctest.h -x c++ /dev/null; }
  if ! have_doctest 2>/dev/null; then
    system_packages "the native tests" doctest-dev ||
      die "the native tests need doctest/doctest.h"
    have_doctest 2>>"$log" || die "doctest/doctest.h still not found (see $log)"
  fi
fi

## Horovod

if ((want_distributed)); then
  have_mpi() { command -v mpicxx && command -v mpirun; } >/dev/null
  have_mpi || system_packages "Horovod over MPI" openmpi-bin libopenmpi-dev || true
  say "building Horovod with MXNet, which takes minutes, if it is not there"
  logged scripts/install_horovod.sh "$venv"
fi

facts=
if [[ "$mxnet" != cpu ]]; then
  facts="$("$venv/bin/python" -W ignore -c '
from gluon_syncbn.diagnose.report import _facts
print(*(f", {n}: {v}" for n, v in _facts() if n in ("NVIDIA driver", "NVRTC")), sep="")')"
fi
say "ready: .venv with Python $version, MXNet for ${mxnet%-toolkit}$facts"
