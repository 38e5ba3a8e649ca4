#!/usr/bin/env bash
# Installs nvcc 13.0 in a virtual environment, from the packages for Python, and prints where it is.
# What it builds needs an NVIDIA driver for CUDA 13 (580.65.06 or later). setup.sh and test_cu112.sh
# call this.
#
#   scripts/install_nvcc.sh VENV
set -euo pipefail
venv="$1"

# Of the earliest CUDA that has all of it there, which older drivers run too.
"$venv/bin/python" -m pip --disable-pip-version-check --no-input install --no-deps \
  nvidia-cuda-{nvcc,crt}==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 \
  nvidia-cuda-cccl==13.0.85 >&2
toolkit="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
toolkit+=/nvidia/cu13
# Where nvcc looks, and what CMake takes for a sign of a toolkit.
ln -sfn lib "$toolkit/lib64"
ln -sfn libcudart.so.13 "$toolkit/lib/libcudart.so"
printf '%s\n' "$toolkit/bin/nvcc"
