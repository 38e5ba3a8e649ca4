#!/usr/bin/env bash
# Builds and runs on a GPU all that needs one but no MXNet: nvcc, CMake, Ninja, a C++17 compiler and
# doctest's header (Debian: doctest-dev; or its folder in DOCTEST). No network. Prints what passed.
#
#   scripts/check_gpu.sh [--no-sanitizer | --help]
#
#   --no-sanitizer  leave out compute-sanitizer, which takes minutes
#
# 1. The four phases against float64 for all shapes, layouts and dtypes; 1 to 8 contexts as streams;
#    missing devices and failures (cuda_tests).
# 2. The whole library on the stand-in for MXNet with GPU contexts (host_scenarios).
# 3. Phases and rounds under compute-sanitizer: memcheck and racecheck.
# 4. The layer on contexts against torch.nn.BatchNorm on the whole batch, where Python has PyTorch
#    with CUDA (scripts/check_gpu_torch.py).
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

nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader ||
  { echo "check_gpu: no GPU that nvidia-smi knows" >&2 && exit 1; }
options=()
if [[ -n "${DOCTEST:-}" ]]; then options+=("-DDOCTEST_INCLUDE_DIR=$DOCTEST"); fi
cmake -S . -B "$folder" -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=Release \
  -DGLUON_SYNCBN_CUDA=ON -DGLUON_SYNCBN_BUILD_TESTS=ON -DGLUON_SYNCBN_WERROR=ON \
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
check "library on the stand-in host" "$folder/host_scenarios" --devices gpu \
  --host "$folder/libstand_in_cuda.so" --adapter "$folder/libgluon_syncbn.so"
if ((sanitizer)); then
  command -v compute-sanitizer >/dev/null || { echo "check_gpu: no compute-sanitizer" >&2 && exit 1; }
  for tool in memcheck racecheck; do
    check "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$folder/cuda_tests" \
      --test-case='cuda phases: the same bits*,cuda backend: 1 to 8*'
  done
fi
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  check "against torch.nn.BatchNorm" python3 scripts/check_gpu_torch.py "$folder/libgpu_step.so"
else
  results+=("| against torch.nn.BatchNorm | not run: no PyTorch with CUDA | |")
fi

printf '\n%s, CUDA %s\n\n' "$(date -u +%F)" "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
printf '| check | result | time |\n| --- | --- | --- |\n'
printf '%s\n' "${results[@]}"
exit $failed
