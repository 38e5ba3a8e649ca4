#!/usr/bin/env bash
# Builds Horovod with gloo for the MXNet of a virtual environment, and installs it there. setup.sh and
# test_cu112.sh call this.
#
#   scripts/install_horovod.sh VENV [mpi]
#
#   mpi  builds it with MPI too
#
# Environment: CUDACXX, the nvcc for Horovod's own kernels. It has kernels only with MXNet for CUDA.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="$1"
version=0.28.1

pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input install)
constraints=()
if "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  constraints=(--constraint scripts/constraints.txt)
fi
# Horovod has no wheels, and does not build with a later setuptools.
"${pip[@]}" ${constraints[@]+"${constraints[@]}"} \
  'setuptools<70' wheel 'cmake>=3.20' cloudpickle psutil pybind11 pyyaml

export HOROVOD_WITH_MXNET=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1
export HOROVOD_WITH_GLOO=1 MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}" PATH="$venv/bin:$PATH"
# Horovod's gloo asks for a version of CMake that CMake 4 refuses.
export CMAKE_POLICY_VERSION_MINIMUM=3.5
if [[ "${2:-}" == mpi ]]; then
  export HOROVOD_WITH_MPI=1
else
  export HOROVOD_WITHOUT_MPI=1
fi

if [[ -n "${CUDACXX:-}" ]]; then
  export PATH="$PATH:$(dirname "$CUDACXX")"
  # MXNet's headers include those of CUDA, which may be in Python's packages alone.
  packages="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
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

"${pip[@]}" --no-build-isolation --no-deps --no-cache-dir --force-reinstall "horovod==$version"
