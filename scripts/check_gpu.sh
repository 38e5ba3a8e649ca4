#!/usr/bin/env bash
# Builds and runs on a GPU all that needs one but no MXNet: nvcc, CMake, Ninja, a C++17 compiler and
# doctest's header (Debian: doctest-dev; or its folder in DOCTEST). No network. Prints what passed.
#
#   scripts/check_gpu.sh [--no-sanitizer | --help]
#
#   --no-sanitizer  leave out compute-sanitizer, which takes minutes
#
# Environment: CUDACXX, the nvcc to use (default: the one in PATH); GLUON_SYNCBN_CUDA_ARCHITECTURES, as
# CMake's CUDA_ARCHITECTURES (default: all that nvcc knows); DOCTEST.
#
# 1. The four phases against float64 for all shapes, layouts and dtypes; 1 to 8 contexts as streams;
#    missing devices and failures (cuda_tests).
# 2. The whole library on a fake MXNet with GPU contexts (mxnet_tests_on_gpus).
# 3. Phases and rounds under compute-sanitizer: memcheck, racecheck and synccheck.
# 4. The layer on contexts against torch.nn.BatchNorm on the whole batch, where python3 has PyTorch
#    with CUDA (scripts/check_gpu_torch.py).
# 5. The same Python permitting, a short benchmark (scripts/benchmark_gpu.py --quick). For the whole
#    one: python3 scripts/benchmark_gpu.py
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sanitizer=1
case "${1:-}" in
  "") ;;
  --no-sanitizer) sanitizer=0 ;;
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
  *)
    echo "check_gpu: unknown option $1 (try --help)" >&2
    exit 2
    ;;
esac
folder="$PWD/build/gpu"
export GLUON_SYNCBN_SHARE_GPUS=1

die() {
  echo "check_gpu: $1" >&2
  exit 1
}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || die "no GPU that nvidia-smi knows"
nvcc="${CUDACXX:-nvcc}"
for program in "$nvcc" cmake ninja; do
  command -v "$program" >/dev/null || die "no $program in PATH"
done
if ((sanitizer)) && ! command -v compute-sanitizer >/dev/null; then
  die "no compute-sanitizer in PATH; it comes with CUDA (or take --no-sanitizer)"
fi
options=()
if [[ -n "${DOCTEST:-}" ]]; then options+=("-DDOCTEST_INCLUDE_DIR=$DOCTEST"); fi
cmake -S . -B "$folder" -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=Release \
  -DGLUON_SYNCBN_CUDA=ON -DGLUON_SYNCBN_BUILD_TESTS=ON \
  -DGLUON_SYNCBN_CUDA_ARCHITECTURES="${GLUON_SYNCBN_CUDA_ARCHITECTURES:-}" \
  ${options[@]+"${options[@]}"}
cmake --build "$folder"

results=()
failed=0
# check NAME COMMAND...: runs it and notes how it ended; output that says it was skipped is a failure.
check() {
  local name="$1" begin=$SECONDS output
  shift
  output="$(mktemp)"
  if "$@" 2>&1 | tee "$output" && ! grep -q "skipped: \|no GPU: " "$output"; then
    results+=("$(printf '| %s | passed | %d s |' "$name" $((SECONDS - begin)))")
  else
    results+=("$(printf '| %s | FAILED | %d s |' "$name" $((SECONDS - begin)))")
    failed=1
  fi
  rm -f "$output"
}
check "phases and rounds" "$folder/cuda_tests" --test-case='cuda*'
check "library on a fake MXNet" env GLUON_SYNCBN_TEST_DEVICE=gpu \
  "$folder/mxnet_tests_on_gpus" --test-suite-exclude=end
if ((sanitizer)); then
  # The library itself checks what calls of the runtime return. That two contexts of one GPU enable
  # access to a peer twice is no error.
  for tool in memcheck racecheck synccheck; do
    check "$tool" compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 \
      "$folder/cuda_tests" \
      --test-case='cuda phases: the same bits*,cuda backend: 1 to 8*'
  done
fi
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  check "against torch.nn.BatchNorm" python3 scripts/check_gpu_torch.py "$folder/libgpu_bridge.so"
  check "short benchmark" python3 scripts/benchmark_gpu.py --quick \
    --library "$folder/libgpu_bridge.so" --out runs/benchmark-gpu-quick
else
  results+=("| against torch.nn.BatchNorm, short benchmark | not run: no PyTorch with CUDA | |")
fi

printf '\n%s, CUDA %s\n\n' "$(date -u +%F)" "$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
printf '| check | result | time |\n| --- | --- | --- |\n'
printf '%s\n' "${results[@]}"
exit $failed
