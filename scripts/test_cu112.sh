#!/usr/bin/env bash
# Runs the tests of GPU contexts with the real MXNet for CUDA 11.2, on any x86-64 machine. MXNet and this
# library run on a CUDA runtime without a GPU (tests/gpu/fake_cuda). scripts/test.sh --cu112 calls this.
#
#   scripts/test_cu112.sh [--mxnet2 | --distributed] [options for pytest]
#
# The first run makes .venv-cu112 (a download of 500 MB). --mxnet2 runs MXNet 2 instead of 1.9.1, in
# .venv-cu112-mxnet2 (600 MB). --distributed tests several processes with GPU contexts instead. Its
# first run builds Horovod in .venv-cu112 (a download of 1.4 GB more).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=cu112
mxnet=1.9.1
size=500
distributed=0
case "${1:-}" in
  --mxnet2)
    name=cu112-mxnet2
    mxnet=2.0.0b1
    size=600
    shift
    ;;
  --distributed)
    distributed=1
    shift
    ;;
esac
venv="$PWD/.venv-$name"
folder="$PWD/build/$name"

if [[ "$(uname -sm)" != "Linux x86_64" ]]; then
  echo "test: --cu112 needs x86-64 Linux: mxnet-cu112 has no package for other machines" >&2
  exit 1
fi
# A second run waits here until the first one ends.
exec 9<"scripts/test_cu112.sh"
flock 9

logged() {
  local log="$1"
  shift
  "$@" >"$log" 2>&1 </dev/null 9<&- || { tail -n 40 "$log" >&2 && return 1; }
}

echo "test: MXNet $mxnet for CUDA 11.2 in .venv-$name (a download of $size MB, if it is not there)"
environment "$venv" "mxnet-cu112==$mxnet" --requirement scripts/requirements-cu112.txt \
  $(pins_for "${PYTHON:-python3}")

export PATH="$venv/bin:$PATH"
packages="$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
build build/native-plain gluon_syncbn -DGLUON_SYNCBN_WERROR=ON
build "build/$name" fake_cuda_libraries -DGLUON_SYNCBN_WERROR=ON -DPython3_EXECUTABLE="$(command -v python)" \
  -DGLUON_SYNCBN_FAKE_CUDA_LIBMXNET="$packages/mxnet/libmxnet.so"

export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export GLUON_SYNCBN_LIBRARY="$PWD/build/native-plain/libgluon_syncbn.so"
# Code for the fake CUDA stays out of the folder where code for GPUs lies.
export XDG_CACHE_HOME="$folder/cache"
rm -rf "$XDG_CACHE_HOME"
export GLUON_SYNCBN_TEST_DEVICE=gpu
# The fake compiler (tests/gpu/fake_cuda/nvrtc) compiles elementwise functions, but no fused kernels.
export MXNET_USE_FUSION=0

if ((distributed)); then
  echo "test: building Horovod in .venv-cu112, which takes minutes, if it is not there"
  logged "$folder.log" python -m pip install --disable-pip-version-check --no-input --no-deps \
    --requirement scripts/requirements-cu112-distributed.txt
  # Horovod links libcudart_static.a. This linker script of that name leads to the fake runtime.
  mkdir -p "$folder/link"
  echo "INPUT($folder/libcudart.so.11.0)" >"$folder/link/libcudart_static.a"
  # Any toolkit will do, and one architecture, because Horovod's kernels do not run here.
  logged "$folder.log" env CUDACXX= LDFLAGS="-L$folder/link" HOROVOD_BUILD_CUDA_CC_LIST=80 \
    scripts/install_horovod.sh "$venv"
  printf '\ntest: several processes with MXNet for CUDA 11.2 on the fake CUDA\n'
  exec python -m pytest "$@" tests/distributed/test_equality.py \
    tests/distributed/test_faults.py -k "gpu or mixed or test_faults"
fi

printf '\ntest: MXNet %s for CUDA 11.2 on the fake CUDA\n' "$mxnet"
# Besides tests/gpu, these are tests of the layer that otherwise use CPU contexts. The fake CUDA
# computes no convolutions, dense layers, sums over axes, casts to sparse arrays or MXNet's BatchNorm.
# Tests that need them are left out, by the beginning of their names.
left_out=(
  tests/layer/test_operator.py::test_{mirrored_operators,module,passes_of_a_module,sparse_arrays_are_refused}
  tests/layer/test_activation.py::test_{export,the_same_array}
)
python -m pytest "${in_processes[@]}" "$@" \
  tests/gpu tests/layer/test_{parity,modes,faults,groups,operator,block}.py \
  tests/layer/test_{cumulative_average,activation,inplace}.py \
  tests/layer/test_life.py::test_exit_{does_not_hide_errors,with_a_round_pending} \
  tests/layer/test_mixed_precision.py::test_amp_{with_its_default_lists,skips_an_overflow} \
  "${left_out[@]/#/--deselect=}"
