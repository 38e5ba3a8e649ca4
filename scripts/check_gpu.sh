#!/usr/bin/env bash
# Checks and times the GPU backend on a machine with a GPU: scripts/check_gpu.py, whose --help says more.
# PYTHON names another Python than python3, such as the one that has PyTorch.
python="${PYTHON:-python3}"
packages="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || exit
# Where programs of CUDA are if they are not in PATH, and those of Python's packages.
for folder in "${CUDA_HOME:-/usr/local/cuda}/bin" /usr/local/cuda*/{bin,compute-sanitizer} /opt/nvidia/nsight-*/*/ \
  "$packages"/nvidia/*/bin "$(dirname "$(command -v "$python")")"; do
  PATH+=":$folder"
done
if command -v ninja >/dev/null; then export CMAKE_GENERATOR="${CMAKE_GENERATOR:-Ninja}"; fi
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/check_gpu.py" "$@"
