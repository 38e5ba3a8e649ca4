#!/usr/bin/env bash
# Checks and times the GPU backend on a machine with a GPU, in 9 minutes. Needs no MXNet.
#
#   scripts/check_gpu.sh [FOLDER]
#
# FOLDER (default: runs/check-gpu) gets results.md, with one line for each check and all times, and
# log.txt, with all output. A check that fails, hangs or lacks its program stops no other. The status
# is 0 if nothing failed. CONTRIBUTING.md says what has to be installed.
#
# Environment:
#   CUDACXX, DOCTEST  nvcc, and the folder of doctest/doctest.h, if they are not found without
#   PYTHON            a Python that has PyTorch, to time its kernels beside ours (default: python3)
#   BINARIES          folder with programs that were built before (default: builds in build/gpu)
#   MINUTES           limit for everything (default: 9)
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out="${1:-runs/check-gpu}"
python="${PYTHON:-python3}"
binaries="${BINARIES:-build/gpu}"
end=$((SECONDS + ${MINUTES:-9} * 60))
mkdir -p "$out" "$binaries"
log="$out/log.txt"
results="$out/results.md"
: >"$log"
: >"$results"
PATH+=":${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/compute-sanitizer"

say() { printf '%s\n' "$*" | tee -a "$results"; }

# What checks print to prove that they did nothing.
idle='skipped: GPUs: |test cases: +0 '
failed=0

# check NAME SECONDS COMMAND...: runs it within its time, with its output in the log and in $output.
check() {
  local name="$1" limit="$2" begin="$SECONDS" result=passed status
  shift 2
  output=
  if ((limit > end - SECONDS)); then limit=$((end - SECONDS)); fi
  if ! command -v "$1" >/dev/null; then
    result="not run: no $1"
  elif ((limit < 1)); then
    result="not run: no time left"
  else
    printf '\n== %s: %s\n' "$name" "$*" >>"$log"
    output="$(timeout --kill-after 5 "$limit" "$@" 2>&1 </dev/null)"
    status=$?
    printf '%s\n' "$output" >>"$log"
    if ((status == 124 || status == 137)); then
      result="FAILED: not done in $limit s"
    elif ((status)); then
      result="FAILED: status $status"
    elif grep -qE "$idle" <<<"$output"; then
      result="FAILED: $(grep -oE -m 1 "($idle).*" <<<"$output")"
    fi
  fi
  if [[ "$result" == FAILED* ]]; then failed=1; fi
  say "| $name | $result | $((SECONDS - begin)) s |"
  [[ "$result" == passed ]]
}

say "| check | result | time |"
say "| --- | --- | --- |"
facts=name,driver_version,compute_cap,clocks.sm,clocks.max.sm,clocks.mem,pstate,temperature.gpu
check "GPU" 20 nvidia-smi "--query-gpu=$facts" --format=csv
gpu="$output"
capability="$(grep -oE '[0-9]+\.[0-9]+, [0-9]+ MHz' <<<"$gpu" | head -n 1 | cut -d , -f 1)"
nvcc="${CUDACXX:-nvcc}"
check "nvcc" 20 "$nvcc" --version
gpu+=$'\n'"$(tail -n 2 <<<"$output")"

if [[ -z "${BINARIES:-}" ]]; then
  check "configured" 60 cmake -S . -B "$binaries" -DCMAKE_CUDA_COMPILER="$(command -v "$nvcc")" \
    -DCMAKE_BUILD_TYPE=Release -DGLUON_SYNCBN_CUDA=ON -DGLUON_SYNCBN_BUILD_TESTS=ON \
    -DGLUON_SYNCBN_CUDA_ARCHITECTURES="${capability//./}-real" \
    ${DOCTEST:+"-DDOCTEST_INCLUDE_DIR=$DOCTEST"} &&
    check "built" 240 cmake --build "$binaries" --parallel "$(nproc)" \
      --target cuda_tests time_gpu mxnet_tests_on_gpus
fi

# First what may corrupt memory. All dtypes, activations, shortcuts and in place, in layouts that
# blocks merge between them.
export GLUON_SYNCBN_SHARE_GPUS=1 GLUON_SYNCBN_TEST_DEVICE=gpu
for tool in memcheck racecheck synccheck initcheck; do
  check "$tool" 60 compute-sanitizer "--tool=$tool" --error-exitcode=9 --report-api-errors=no \
    "$binaries/cuda_tests" --minimal \
    "--test-case=cuda activations: *outputs*,cuda activations: grad*,cuda in place*"
done
check "kernels and backend" 90 "$binaries/cuda_tests"
check "library on a fake MXNet" 60 "$binaries/mxnet_tests_on_gpus" --test-suite-exclude=end
check "times" 60 "$binaries/time_gpu"
times="$output"
output=
if "$python" -c 'import torch' 2>>"$log"; then
  check "PyTorch" 60 "$python" scripts/time_torch.py "$log"
else
  say "| PyTorch | not run: no torch for $python | 0 s |"
fi
say "
$gpu

$times

$output"
exit "$failed"
