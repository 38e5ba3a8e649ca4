#!/usr/bin/env bash
# Builds Horovod for the MXNet of a virtual environment, with gloo, and with MPI if that is here. Installs
# it there, or does nothing if it is there already. setup.sh and test_cu112.sh call this.
#
#   scripts/install_horovod.sh VENV
#
# Environment:
#   CUDACXX  the nvcc for Horovod's own kernels, which it has only with MXNet for CUDA. The default is
#            nvcc in PATH, /usr/local/cuda/bin/nvcc, or 13.0 of Python's packages, which an empty
#            CUDACXX demands. The code of 13.0 needs the NVIDIA driver 580.65.06 or later.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="$(realpath "$1")"
export PATH="$venv/bin:$PATH"
packages="$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
pip=(python -m pip --disable-pip-version-check --no-input install)

with_mpi=WITHOUT_MPI
if command -v mpicxx && command -v mpirun; then with_mpi=WITH_MPI; fi >/dev/null
mxnet="$(cd "$packages" && echo mxnet*.dist-info)"
wanted="$mxnet $with_mpi $(cat scripts/install_horovod.sh)"
if [[ "$(cat "$venv/horovod" 2>/dev/null)" == "$wanted" ]] &&
  python -W ignore -c 'import horovod.mxnet'; then exit; fi
rm -f "$venv/horovod"

# Horovod has no wheels, and does not build with a later setuptools.
"${pip[@]}" $(pins_for python) 'setuptools<70' wheel 'cmake>=3.20' cloudpickle psutil pybind11 pyyaml

if [[ "$mxnet" == mxnet_cu112* ]]; then
  CUDACXX="${CUDACXX-$(PATH="$PATH:/usr/local/cuda/bin" command -v nvcc || true)}"
  if [[ -z "$CUDACXX" ]]; then
    # CUDA 13.0 is the earliest whose nvcc is in Python's packages.
    "${pip[@]}" --no-deps nvidia-cuda-{nvcc,crt}==13.0.88 nvidia-nvvm==13.0.88 \
      nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    toolkit="$packages/nvidia/cu13"
    # nvcc looks for libraries in lib64, and CMake takes libcudart.so for the sign of a toolkit.
    ln -sfn lib "$toolkit/lib64"
    ln -sfn libcudart.so.13 "$toolkit/lib/libcudart.so"
    CUDACXX="$toolkit/bin/nvcc"
  fi
  export CUDACXX PATH="$PATH:${CUDACXX%/*}"
  # MXNet's headers include those of CUDA, which may be in Python's packages alone.
  for folder in "$packages"/nvidia/{cublas,cudnn,curand,cusolver}/include; do
    if [[ -d "$folder" ]]; then
      export CPLUS_INCLUDE_PATH="${CPLUS_INCLUDE_PATH:+$CPLUS_INCLUDE_PATH:}$folder"
    fi
  done
  # Horovod takes one compiler for everything, and nvcc refuses a compiler that is newer than itself.
  for compiler in "${CXX:-c++}" g++-{14,13,12,11,10,9}; do
    if "$CUDACXX" -ccbin "$compiler" -x cu -E /dev/null >/dev/null 2>&1; then
      export CXX="$compiler"
      break
    fi
  done
fi

export HOROVOD_WITH_MXNET=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITH_GLOO=1
export "HOROVOD_$with_mpi=1" MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}"
# Horovod's gloo asks for a version of CMake that CMake 4 refuses.
export CMAKE_POLICY_VERSION_MINIMUM=3.5
"${pip[@]}" --no-build-isolation --no-deps --no-cache-dir --force-reinstall horovod==0.28.1
python -W ignore -c 'import horovod.mxnet'
printf '%s\n' "$wanted" >"$venv/horovod"
