#!/usr/bin/env bash
# Builds a release in dist/ from the last commit: the sdist and one wheel. The wheel runs on Python
# 3.8 and later, on every x86-64 Linux of MXNet 1.9.1's own wheels (manylinux2014). CUDA 11 compiles
# its GPU backend, so every driver that runs mxnet-cu112 runs the wheel (450.80.02 and later).
# dist/SHA256SUMS has the checksums of both.
#
#   scripts/build_wheels.sh [--any-cuda | --no-cuda]
#
#   --any-cuda  takes any nvcc from 11.2 on. The wheel may need a newer driver; the last line says
#               which one.
#   --no-cuda   leaves the GPU backend out. GPU contexts are then an error.
#
# Needs g++ (11 and 12 are tested), and nvcc 11.2 to 11.8 with a g++ of at most 11.
#
# Environment:
#   CUDACXX, CUDAHOSTCXX  nvcc and its g++, if they are not found
#   PYTHON                interpreter for the tools, 3.10 or later (default: python3)
#   CMAKE_BUILD_PARALLEL_LEVEL  how many compilers run at a time
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
platform=manylinux2014_x86_64

say() { printf 'wheels: %s\n' "$*"; }
die() {
  printf 'wheels: error: %s\n' "$*" >&2
  exit 1
}

# Prints the first error of CMake, a compiler or the linker. The end of the log has only the programs
# that called them.
first_error() {
  grep -m 1 -A 6 -E '(^|: )(fatal )?error:|^ *CMake Error|nvcc fatal|undefined reference|cannot find -l' \
    "$1" || tail -n 40 "$1"
}

# Writes dist/SHA256SUMS, which "sha256sum --check" reads there.
checksums() {
  (cd dist && sha256sum -- "$@" >SHA256SUMS)
}

cuda=11
case "${1:-}" in
  "") ;;
  --any-cuda) cuda=any ;;
  --no-cuda) cuda=none ;;
  *) die "unknown option $1 (try --help)" ;;
esac

driver=none
export GLUON_SYNCBN_CUDA=OFF
if [[ $cuda != none ]]; then
  nvcc="${CUDACXX:-$(command -v nvcc || true)}"
  if [[ -z "$nvcc" && -x /usr/local/cuda/bin/nvcc ]]; then nvcc=/usr/local/cuda/bin/nvcc; fi
  wanted="nvcc of CUDA 11.2 to 11.8 (Debian 12: nvidia-cuda-toolkit in non-free); set CUDACXX to it and \
CUDAHOSTCXX to a g++ of at most 11, or give --any-cuda or --no-cuda"
  [[ -n "$nvcc" ]] || die "no nvcc is here; a release needs $wanted"
  version="$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
  case "$version" in
    11.[2-8]*) driver=450.80.02 ;;
    12.*) driver=525.60.13 ;;
    13.*) driver=580.65.06 ;;
    *) die "$nvcc is of CUDA ${version:-unknown}; a release needs $wanted" ;;
  esac
  if [[ $cuda == 11 && $version != 11.* ]]; then
    die "$nvcc is of CUDA $version, whose code no driver before $driver runs; a release needs $wanted"
  fi
  export GLUON_SYNCBN_CUDA=ON CUDACXX="$nvcc"
  # The architectures of MXNet's package, sm_75, and PTX for later GPUs.
  if [[ $version == 11.* ]]; then
    export GLUON_SYNCBN_CUDA_ARCHITECTURES="50-real;60-real;70-real;75-real;80-real;86-real;86-virtual"
  fi
  say "GPU backend by CUDA $version"
fi

work="$root/build/wheels"
rm -rf "$work"
mkdir -p "$work"
if [[ -n "$(git status --porcelain)" ]]; then say "note: the release leaves out changes that are not committed"; fi
git clone --quiet --no-hardlinks "$root" "$work/source"
"${PYTHON:-python3}" -m venv "$work/venv"
# Debian's nvcc looks for ptxas in PATH, where that of another CUDA may come first.
export PATH="$work/venv/bin:${nvcc:+$(dirname "$(command -v "$nvcc")"):}$PATH"
python -m pip install --quiet --disable-pip-version-check -r scripts/requirements-wheels.txt

say "building the sdist, and the wheel from it; all output is in $work/log"
CMAKE_ARGS="${CMAKE_ARGS:-} -DGLUON_SYNCBN_PORTABLE=ON -DGLUON_SYNCBN_WERROR=ON" \
  python -m build --outdir "$work/dist" "$work/source" >"$work/log" 2>&1 </dev/null ||
  { first_error "$work/log" >&2 && die "the build has failed"; }

# Fails, and names the symbols, if the library needs newer ones than the tag allows.
auditwheel repair --strip --plat "$platform" --wheel-dir "$work/repaired" "$work"/dist/*.whl
mkdir -p dist
cp "$work"/dist/*.tar.gz "$work"/repaired/*.whl dist
wheel="$(cd "$work/repaired" && echo *.whl)"
auditwheel show "dist/$wheel"
python -m twine check --strict "dist/$wheel" dist/"$(cd "$work/dist" && echo *.tar.gz)"
checksums "$(cd "$work/dist" && echo *.tar.gz)" "$wheel"
say "dist/$wheel: $(($(stat -c %s "dist/$wheel") / 1024)) KiB, NVIDIA driver for GPU contexts: $driver"
