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
#                       CUDA 11. The default is cpu if there is no NVIDIA driver, cu112-toolkit if
#                       the system has all of these libraries, and cu112 otherwise.
#   GLUON_SYNCBN_CUDA   ON builds the GPU backend for all GPUs, AUTO for the GPUs of this machine, OFF
#                       does not build it. The default is AUTO with MXNet for CUDA, and OFF without.
#                       ON and AUTO install an nvcc if there is none: the one of Python's packages,
#                       in .venv, if the driver is new enough for it. Otherwise Debian's
#                       nvidia-cuda-toolkit (non-free), if this user may call apt-get and if that
#                       would not install another driver. Otherwise ON takes the one of Python's
#                       packages, whose code this driver does not run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
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
if command -v flock >/dev/null; then flock 9; fi

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

# Prints those of the shared libraries "$@" that do not load.
missing_libraries() {
  "$venv/bin/python" - "$@" <<'END'
import ctypes, sys

for library in sys.argv[1:]:
    try:
        ctypes.CDLL(library)
    except OSError:
        print(library)
END
}

choose_mxnet() {
  local missing
  case "${GLUON_SYNCBN_MXNET:-}" in
    cpu | cu112 | cu112-toolkit)
      mxnet="$GLUON_SYNCBN_MXNET"
      return
      ;;
    "") ;;
    *) die "GLUON_SYNCBN_MXNET is '$GLUON_SYNCBN_MXNET': expected cpu, cu112 or cu112-toolkit" ;;
  esac
  mxnet=cpu
  if [[ -n "$(missing_libraries libcuda.so.1)" || "$(uname -m)" != x86_64 ]]; then
    return
  fi
  # The libraries to which libmxnet.so of mxnet-cu112 is linked.
  missing="$(missing_libraries libcudart.so.11.0 libcudnn.so.8 libnccl.so.2 libcublas.so.11 \
    libcufft.so.10 libcurand.so.10 libcusolver.so.11 libnvrtc.so.11.2 libnvToolsExt.so.1)"
  mxnet=cu112-toolkit
  if [[ -n "$missing" ]]; then mxnet=cu112; fi
}

# Prints the CUDA version of the driver, such as 12.4, or nothing if there is no driver.
driver_cuda() {
  "$venv/bin/python" - <<'END' 2>/dev/null || true
import ctypes

version = ctypes.c_int()
if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
    print(f"{version.value // 1000}.{version.value % 1000 // 10}")
END
}

# The path of the user's nvcc, or nothing.
users_nvcc="${CUDACXX:-$(command -v nvcc || true)}"
if [[ -z "$users_nvcc" && -x /usr/local/cuda/bin/nvcc ]]; then
  users_nvcc=/usr/local/cuda/bin/nvcc
fi

# Installs nvcc from the system's packages if its code runs with a driver for CUDA "$1", such as 12.4.
# Does not if the packages would also install a driver, which would replace this one.
system_nvcc() {
  local version changes
  version="$(LC_ALL=C apt-cache policy nvidia-cuda-toolkit 2>/dev/null |
    sed -n 's/^ *Candidate: \([0-9]*\.[0-9]*\).*/\1/p')"
  if [[ -z "$version" ]] || ((${version%%.*} > ${1%%.*})) ||
    [[ "$(printf '%s\n' 11.2 "$version" | sort -V | head -n 1)" != 11.2 ]]; then
    return 1
  fi
  changes="$(LC_ALL=C apt-get install -s --no-install-recommends nvidia-cuda-toolkit 2>/dev/null)" ||
    return 1
  if grep -qE '^(Remv|Inst (libcuda1|libnvidia-compute|nvidia-(alternative|driver|kernel)))' \
    <<<"$changes"; then
    return 1
  fi
  system_packages "nvcc $version, 1.6 GB" nvidia-cuda-toolkit
}

# Sets CUDACXX to an nvcc: the user's, or one of the system's or Python's packages whose code runs with
# this driver; with GLUON_SYNCBN_CUDA=ON, that of Python's packages for any driver. If there is none,
# says what to install and returns 1.
provide_nvcc() {
  local known
  CUDACXX="${CUDACXX:-$users_nvcc}"
  export CUDACXX
  if [[ -n "$CUDACXX" ]]; then return; fi
  known="$(driver_cuda)"
  if ((${known%%.*} + 0 < 13)); then
    if [[ -n "$known" ]] && system_nvcc "$known"; then
      users_nvcc="$(command -v nvcc)"
      CUDACXX="$users_nvcc"
      return
    fi
    if [[ "$GLUON_SYNCBN_CUDA" != ON ]]; then
      say "warning: there is no nvcc. The one of Python's packages builds for drivers of CUDA 13" \
        "(580.65.06 and later), and this driver is for CUDA ${known:-unknown}. Install a newer" \
        "driver or nvcc of CUDA 11.2 to ${known:-12} (Debian: nvidia-cuda-toolkit in non-free) and" \
        "run this again"
      return 1
    fi
  fi
  say "installing nvcc 13.0 in .venv; its code runs on GPUs from Turing (sm_75) on"
  logged scripts/install_nvcc.sh "$venv"
  CUDACXX="$(tail -n 1 "$log")"
}

# Prints a hash of the names and contents of the files "$@", and of all files in the folders "$@".
hash_of() {
  local path
  for path in "$@"; do
    if [[ -e "$path" ]]; then
      find "$path" -type f ! -name '*.py[cod]' ! -name '*.so' ! -name '*.sw[a-p]' -print0
    fi
  done | LC_ALL=C sort -z | xargs -0 -r sha256sum | sha256sum | cut -d ' ' -f 1
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
version="$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"

## What to install

choose_mxnet
default=AUTO
if [[ "$mxnet" == cpu ]]; then default=OFF; fi
export GLUON_SYNCBN_CUDA="${GLUON_SYNCBN_CUDA:-$default}"
extras="$mxnet,demo"
# The tools of the tests stay in .venv even if this run does not ask for them.
if ((want_test)) || [[ -e "$state/test" ]]; then
  extras+=",gluoncv,onnx,test,lint"
fi
constraints=()
if [[ "$version" == 3.11 ]]; then
  constraints=(--constraint scripts/constraints.txt)
fi

dependencies="$version $extras $(hash_of pyproject.toml scripts/constraints.txt)"
# Prints a hash of the sources of the build, and its nvcc, which the driver determines if the user has
# none.
project_stamp() {
  local nvcc=""
  if [[ "$GLUON_SYNCBN_CUDA" != OFF ]]; then nvcc="${users_nvcc:-that for $(driver_cuda)}"; fi
  printf '%s ' "$version" "$GLUON_SYNCBN_CUDA" "${GLUON_SYNCBN_CUDA_ARCHITECTURES:-}" "$nvcc"
  hash_of CMakeLists.txt cmake gluon_syncbn/_version.py pyproject.toml setup.py src
}
library=gluon_syncbn/libgluon_syncbn.so

## Installing

: >"$log"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
with_dependencies=0
if ! stamped dependencies "$dependencies"; then with_dependencies=1; fi
if ((with_dependencies)) || ! stamped project "$(project_stamp)" || [[ ! -e "$library" ]]; then
  command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
    die "no C++ compiler found (Debian: apt-get install g++)"
  rm -f "$state/project" "$state/imported"
  logged "${pip[@]}" install 'pip>=22' # An earlier pip cannot install this project in place.
  alone=()
  if ((!with_dependencies)); then
    alone=(--no-deps --force-reinstall)
    say "building and installing gluon_syncbn"
  else
    rm -f "$state/dependencies"
    # Both builds of MXNet install the module "mxnet", so the old one must go first.
    if ! stamped mxnet "$mxnet"; then
      logged "${pip[@]}" uninstall -q -y mxnet mxnet-cu112
    fi
    say "building and installing gluon_syncbn and its dependencies [$extras]; this can take minutes"
  fi
  if [[ "$GLUON_SYNCBN_CUDA" != OFF ]] && ! provide_nvcc; then
    say "warning: built without the GPU backend: GPU contexts will be refused"
  fi
  # One call installs all packages, so that pip sees all constraints on NumPy.
  logged "${pip[@]}" install ${alone[@]+"${alone[@]}"} ${constraints[@]+"${constraints[@]}"} \
    --editable ".[$extras]"
  printf '%s\n' "$mxnet" >"$state/mxnet"
  printf '%s\n' "$dependencies" >"$state/dependencies"
  project_stamp >"$state/project"
fi

# pip may have replaced a library that MXNet loads. An import shows whether all still load.
if [[ ! -e "$state/imported" ]]; then
  logged "$venv/bin/python" -W ignore -c 'import gluon_syncbn'
  touch "$state/imported"
fi

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

with_mpi=
if ((want_distributed)); then
  have_mpi() { command -v mpicxx && command -v mpirun; } >/dev/null
  have_mpi || system_packages "Horovod over MPI" openmpi-bin libopenmpi-dev || true
  if have_mpi; then with_mpi=mpi; fi
  horovod="$(hash_of scripts/install_horovod.sh) $version $mxnet $with_mpi"
  if ! stamped horovod "$horovod" || ! "$venv/bin/python" -c 'import horovod.mxnet' 2>/dev/null; then
    if [[ "$mxnet" != cpu ]] && ! provide_nvcc; then
      die "with MXNet for CUDA, Horovod has its own kernels, which only nvcc compiles"
    fi
    say "building Horovod with MXNet, gloo${with_mpi:+ and MPI}; this takes minutes"
    rm -f "$state/horovod"
    logged scripts/install_horovod.sh "$venv" $with_mpi
    logged "$venv/bin/python" -W ignore -c 'import horovod.mxnet'
    printf '%s\n' "$horovod" >"$state/horovod"
  fi
fi

facts="$("$venv/bin/python" -W ignore -c '
import sys
from gluon_syncbn.diagnose import report
from gluon_syncbn.library import LIBRARY
build = LIBRARY.gpu_build()
print("GPU backend: " + (build if sys.argv[1] != "cpu" else build.split(";")[0]))
if not build.startswith("not built"):
    print("NVIDIA driver: " + report.describe_driver(build))' "$mxnet")"
say "ready: .venv with Python $version, MXNet for ${mxnet%-toolkit}, ${facts//$'\n'/, }"
