#!/usr/bin/env bash
# Checks and times the GPU backend on a machine with a GPU, in 9 minutes. Needs no MXNet.
#
#   scripts/check_gpu.sh [FOLDER]
#
# FOLDER (default: runs/check-gpu) gets results.md, with a line for each check and all times, and
# log.txt, with all output. A check that fails, hangs or lacks its program stops no other one. What
# matters most comes first. The status is 0 if nothing failed. CONTRIBUTING.md says what has to be
# installed.
#
# For a machine without a network, carry doctest's header there (DOCTEST). Or build the programs
# elsewhere, with BUILD_FOR, and carry build/gpu there (BINARIES).
#
# Environment:
#   CUDACXX, DOCTEST  nvcc, and the folder of doctest/doctest.h, if CMake does not find them
#   PYTHON            a Python that has PyTorch, to time its kernels beside ours (default: python3)
#   BUILD_FOR         builds for this compute capability (such as 9.0) in build/gpu, and ends
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

# Ends what the last check has left: a tool may start its program in a session of its own. All that a
# check starts inherits CHECK_GPU.
end_children() {
  local found
  found="$(grep -lzx "CHECK_GPU=$$" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3)"
  # shellcheck disable=SC2086  # one word for each process
  [[ -z "$found" ]] || kill -KILL $found 2>/dev/null
}
trap end_children EXIT

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
    # Not through a pipe, which a child that is left would keep open.
    CHECK_GPU="$$" timeout --kill-after 5 "$limit" "$@" >"$out/output.txt" 2>&1 </dev/null
    status=$?
    end_children
    output="$(tr -d '\0' <"$out/output.txt")"
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

# build CAPABILITY: the programs, with nvcc.
build() {
  check "configured" 60 cmake -S . -B "$binaries" -DCMAKE_CUDA_COMPILER="$(command -v "$nvcc")" \
    -DCMAKE_BUILD_TYPE=Release -DGLUON_SYNCBN_CUDA=ON -DGLUON_SYNCBN_BUILD_TESTS=ON \
    -DGLUON_SYNCBN_CUDA_ARCHITECTURES="${1//./}-real" \
    ${DOCTEST:+"-DDOCTEST_INCLUDE_DIR=$DOCTEST"} &&
    check "built" "$2" cmake --build "$binaries" --parallel "$(nproc)" \
      --target cuda_tests time_gpu mxnet_tests_on_gpus
}

say "| check | result | time |"
say "| --- | --- | --- |"
nvcc="${CUDACXX:-nvcc}"
if [[ -n "${BUILD_FOR:-}" ]]; then
  build "$BUILD_FOR" 540
  exit
fi
facts=name,driver_version,compute_cap,clocks.sm,clocks.max.sm,clocks.mem,pstate,temperature.gpu
check "GPU" 20 nvidia-smi "--query-gpu=$facts" --format=csv
gpu="$output"
capability="$(grep -oE '[0-9]+\.[0-9]+, [0-9]+ MHz' <<<"$gpu" | head -n 1 | cut -d , -f 1)"
check "nvcc" 20 "$nvcc" --version
gpu+=$'\n'"$(tail -n 2 <<<"$output")"
if [[ -z "${BINARIES:-}" ]]; then build "$capability" 240; fi

export GLUON_SYNCBN_SHARE_GPUS=1 GLUON_SYNCBN_TEST_DEVICE=gpu
check "kernels and backend" 90 "$binaries/cuda_tests"
check "library on a fake MXNet" 60 "$binaries/mxnet_tests_on_gpus" --test-suite-exclude=end
check "times" 60 "$binaries/time_gpu"
times="$output"
check "times of messages on the GPU" 20 "$binaries/time_gpu" messages
times+=$'\n\nMessages on the GPU:'"$output"
check "times of messages on the host" 20 env MXNET_ENABLE_GPU_P2P=0 "$binaries/time_gpu" messages
times+=$'\n\nMessages on the host:'"$output"
torch=
if timeout 30 "$python" -c 'import torch' 2>>"$log"; then
  check "PyTorch" 60 "$python" scripts/time_torch.py "$log"
  torch="$output"
else
  say "| PyTorch | not run: no torch for $python | 0 s |"
fi

# The last checks look for corrupted memory, on small arrays, because the tools are slow. They take
# all dtypes, activations, shortcuts and in place, in layouts that several blocks merge. The tools
# share the time that is left.
export GLUON_SYNCBN_TEST_ELEMENTS=2000
tools=(memcheck racecheck synccheck initcheck)
for i in "${!tools[@]}"; do
  check "${tools[i]}" "$(((end - SECONDS) / (${#tools[@]} - i)))" \
    compute-sanitizer "--tool=${tools[i]}" --error-exitcode=9 --report-api-errors=no \
    "$binaries/cuda_tests" --minimal \
    "--test-case=cuda activations: *outputs*,cuda activations: grad*,cuda in place*"
done
say "
$gpu

$times

$torch"
exit "$failed"
