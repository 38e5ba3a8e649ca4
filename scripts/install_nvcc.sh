#!/usr/bin/env bash
# Installs nvcc 13.0 in a virtual environment, from Python's packages, and prints its path. Horovod's
# own kernels need it where MXNet is for CUDA. Its code needs the NVIDIA driver 580.65.06 or later.
# setup.sh and test_cu112.sh call this.
#
#   scripts/install_nvcc.sh VENV
set -euo pipefail
venv="$1"

# CUDA 13.0 is the earliest whose nvcc is in Python's packages.
"$venv/bin/python" -m pip --disable-pip-version-check --no-input install --no-deps \
  nvidia-cuda-{nvcc,crt}==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 \
  nvidia-cuda-cccl==13.0.85 >&2
toolkit="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
toolkit+=/nvidia/cu13
# nvcc looks for libraries in lib64, and CMake takes libcudart.so for the sign of a toolkit.
ln -sfn lib "$toolkit/lib64"
ln -sfn libcudart.so.13 "$toolkit/lib/libcudart.so"
printf '%s\n' "$toolkit/bin/nvcc"
