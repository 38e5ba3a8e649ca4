#!/usr/bin/env bash
# Runs the tests of GPU contexts with the real MXNet for CUDA 11.2, on any x86-64 machine: it and this
# library run on a CUDA runtime without a GPU (tests/fake_cuda). scripts/test.sh --cu112 calls this.
#
#   scripts/test_cu112.sh [--distributed] [options for pytest]
#
# The first time, this makes .venv-cu112 (a download of 500 MB). --distributed tests several processes
# with GPU contexts instead, for which it builds Horovod there (a download of 1.4 GB more).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="$PWD/.venv-cu112"
folder="$PWD/build/cu112"

distributed=0
if [[ "${1:-}" == --distributed ]]; then
  distributed=1
  shift
fi
if [[ "$(uname -sm)" != "Linux x86_64" ]]; then
  echo "test: --cu112 needs x86-64 Linux, for which MXNet's package is" >&2
  exit 1
fi
exec 9<"scripts/test_cu112.sh"
if command -v flock >/dev/null; then flock 9; fi

logged() {
  local log="$1"
  shift
  "$@" >"$log" 2>&1 </dev/null 9<&- || { tail -n 40 "$log" >&2 && return 1; }
}

python="${PYTHON:-python3}"
if [[ "$("$venv/bin/python" -c 'import sys; print(sys.prefix)' 2>/dev/null)" != "$venv" ]]; then
  echo "test: making .venv-cu112"
  "$python" -m venv --clear "$venv"
fi
constraints=()
if "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  constraints=(--constraint scripts/constraints.txt)
fi
wanted="$(cat scripts/requirements-cu112.txt scripts/constraints.txt)"
if [[ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]]; then
  echo "test: installing MXNet for CUDA 11.2 into .venv-cu112 (a download of 500 MB)"
  logged "$venv/setup.log" "$venv/bin/python" -m pip install ${constraints[@]+"${constraints[@]}"} \
    --disable-pip-version-check --no-input --requirement scripts/requirements-cu112.txt
  printf '%s\n' "$wanted" >"$venv/installed"
fi

export PATH="$venv/bin:$PATH"
packages="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
mkdir -p "$folder"
logged "$folder.log" cmake -S . -B "$folder" -G Ninja --log-level=WARNING \
  -DCMAKE_BUILD_TYPE=Release -DGLUON_SYNCBN_WERROR=ON -DGLUON_SYNCBN_CUDA=OFF \
  -DGLUON_SYNCBN_BUILD_TESTS=ON -DPython3_EXECUTABLE="$venv/bin/python" \
  "-DGLUON_SYNCBN_FAKE_CUDA_HEADERS=$packages/nvidia/cuda_runtime/include;$packages/nvidia/cuda_nvcc/include" \
  -DGLUON_SYNCBN_FAKE_CUDA_LIBMXNET="$packages/mxnet/libmxnet.so"
logged "$folder.log" cmake --build "$folder" --target fake_cuda_libraries fake_cuda_tests \
  time_gpu_on_fake

export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export GLUON_SYNCBN_LIBRARY="$folder/libgluon_syncbn_on_fake.so"
export GLUON_SYNCBN_TEST_DEVICE=gpu
# Fused kernels are compiled when they are needed, for which there is no compiler here.
export MXNET_USE_FUSION=0

if ((distributed)); then
  with_mpi=
  if command -v mpicxx >/dev/null && command -v mpirun >/dev/null; then with_mpi=mpi; fi
  wanted="$with_mpi
$(cat scripts/{requirements-cu112-distributed.txt,install_nvcc.sh,install_horovod.sh})"
  if [[ "$(cat "$venv/horovod" 2>/dev/null)" != "$wanted" ]]; then
    echo "test: building Horovod in .venv-cu112; this takes minutes"
    logged "$folder.log" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
      --no-deps --requirement scripts/requirements-cu112-distributed.txt
    logged "$folder.log" scripts/install_nvcc.sh "$venv"
    CUDACXX="$(tail -n 1 "$folder.log")"
    # The compiler links the static CUDA runtime by this name, which here is the fake one.
    mkdir -p "$folder/link"
    echo "INPUT($folder/libcudart.so.11.0)" >"$folder/link/libcudart_static.a"
    # Its kernels do not run here: one architecture will do.
    logged "$folder.log" env CUDACXX="$CUDACXX" LDFLAGS="-L$folder/link" \
      HOROVOD_BUILD_CUDA_CC_LIST=80 scripts/install_horovod.sh "$venv" $with_mpi
    printf '%s\n' "$wanted" >"$venv/horovod"
  fi
  printf '\ntest: several processes with MXNet for CUDA 11.2 on the fake CUDA\n'
  exec "$venv/bin/python" -m pytest "$@" tests/distributed/test_equality.py \
    tests/distributed/test_faults.py -k "gpu or mixed or test_faults"
fi

printf '\ntest: runtime.cc on the fake CUDA\n'
"$folder/fake_cuda_tests" --minimal
"$folder/time_gpu_on_fake" small >"$folder.log"

printf '\ntest: MXNet for CUDA 11.2 on the fake CUDA\n'
# cuDNN here has one algorithm of each kind: there is nothing to measure.
export MXNET_CUDNN_AUTOTUNE_DEFAULT=0
run() {
  "$venv/bin/python" -m pytest "${options[@]+"${options[@]}"}" "$@"
}
options=("$@")

# Beside tests/cu112, those that run on CPU contexts elsewhere. Left out are
# - those of GluonCV and its networks, which is not installed here: tests/layer/test_convert.py,
#   test_networks.py, test_gluoncv_families.py, test_progress.py, test_data_parallel_model;
# - test_fork: after a fork CUDA serves no child (tests/cu112/test_fork.py);
# - of tests/gpu, test_soak and the timing, which are about memory and speed of GPUs;
# - what has to do with CPU contexts alone, or with no contexts at all.
run --numprocesses 2 --dist loadfile --max-worker-restart 0 \
  tests/cu112 tests/layer/test_{parity,faults,groups,operator,modes,life,block}.py \
  tests/layer/test_{in_sync,cumulative_average,mixed_precision,activation,inplace}.py \
  tests/export/test_{export,fold,deploy}.py \
  tests/gpu/test_gpu.py::test_{two_gpus_are_one_device_on_the_whole_batch,branches_train} \
  tests/gpu/test_gpu.py::test_cpu_and_gpu_contexts_do_not_meet \
  --deselect tests/layer/test_life.py::test_data_parallel_model \
  --deselect tests/layer/test_life.py::test_fork
