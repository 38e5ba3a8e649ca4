#!/usr/bin/env bash
# Checks and times the GPU backend on a machine with a GPU. Needs no MXNet.
#
#   scripts/check_gpu.sh [--first | --rest] [FOLDER]
#
# FOLDER (default: runs/check-gpu) gets results.md, with a line for each check and all figures, as
# soon as each check ends, and log.txt, with all output. A check that fails, hangs or lacks its
# program stops no other one. What matters most comes first. The status is 0 if nothing failed.
#
#   --first  only the tests and times, in 5 minutes
#   --rest   only kernels as PTX, calls of CUDA, the profiler and compute-sanitizer, in 7 minutes; adds
#            to the results of --first
#
# The machine needs the NVIDIA driver. NVRTC comes from Python's packages. For a machine without a
# network, a compiler or doctest, build elsewhere, with BUILD_FOR, and carry build/gpu there
# (BINARIES): the programs, NVRTC, and compiled kernels.
#
# Environment:
#   DOCTEST           the folder of doctest/doctest.h, if it is not found. Without doctest no tests
#                     are built, only the program that times the GPU.
#   GLUON_SYNCBN_NVRTC  another NVRTC
#   PYTHON            a Python (default: python3). If it has MXNet for CUDA, pytest and hypothesis,
#                     networks train on one GPU. If it has PyTorch, its kernels are timed beside ours.
#   GLUON_SYNCBN_LIBRARY  another library for MXNet than the one that is built here
#   BUILD_FOR         builds in build/gpu, compiles the kernels for these compute capabilities (such as
#                     "8.0 9.0"), and ends
#   BINARIES          folder with programs that were built before (default: builds in build/gpu)
#   MINUTES           limit for everything (default: 10, with --first 5, with --rest 7)
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
part=all
minutes=10
case "${1:-}" in
  --first) part=first minutes=5 ;;
  --rest) part=rest minutes=7 ;;
esac
if [[ $part != all ]]; then shift; fi
out="${1:-runs/check-gpu}"
python="${PYTHON:-python3}"
binaries="${BINARIES:-build/gpu}"
end=$((SECONDS + ${MINUTES:-$minutes} * 60))
mkdir -p "$out" "$binaries"
out="$(cd "$out" && pwd)"
binaries="$(cd "$binaries" && pwd)"
log="$out/log.txt"
results="$out/results.md"
current="$out/output.txt" # of the check that runs
work="$(mktemp -d)"       # NVRTC, and caches of kernels
if [[ $part != rest ]]; then
  : >"$log"
  : >"$results"
fi
PATH+=":${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/compute-sanitizer"
for folder in /opt/nvidia/nsight-compute/*; do PATH+=":$folder"; done

say() { printf '%s\n' "$*" | tee -a "$results"; }

# What checks print to prove that they did nothing.
idle='skipped: GPUs: |test cases: +0 |No kernels were profiled|^==ERROR==|^error:'
failed=0
running=

# Ends what the last check has left: a tool may start its program in a session of its own. All that a
# check starts inherits CHECK_GPU.
end_children() {
  local found
  found="$(grep -lzx "CHECK_GPU=$$" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3)"
  # shellcheck disable=SC2086  # one word for each process
  [[ -z "$found" ]] || kill -KILL $found 2>/dev/null
}
leave() {
  end_children
  rm -rf "$work"
  if [[ -n "$running" ]]; then say "- $running: FAILED: interrupted

$(tr -d '\0' <"$current")"; fi
}
trap leave EXIT
trap 'exit 143' TERM INT HUP

# check NAME SECONDS COMMAND...: runs it within its time, with its output in the log and in $output.
# The output has to contain $must_say.
check() {
  local name="$1" limit="$2" begin="$SECONDS" result=passed status end_of_output=
  shift 2
  output=
  if ((limit > end - SECONDS)); then limit=$((end - SECONDS)); fi
  if ! command -v "$1" >/dev/null; then
    result="FAILED: no $1"
  elif ((limit < 1)); then
    result="FAILED: no time left"
  else
    printf '\n== %s: %s\n' "$name" "$*" >>"$log"
    running="$name"
    # Not through a pipe, which a child that is left would keep open. A signal ends "wait" at once.
    CHECK_GPU="$$" timeout --kill-after 5 "$limit" "$@" >"$current" 2>&1 </dev/null &
    wait "$!"
    status=$?
    running=
    end_children
    output="$(tr -d '\0' <"$current")"
    printf '%s\n' "$output" >>"$log"
    if ((status == 124 || status == 137)); then
      result="FAILED: not done in $limit s"
    elif ((status)); then
      result="FAILED: status $status"
    elif grep -qE "$idle" <<<"$output"; then
      result="FAILED: $(grep -oE -m 1 "($idle).*" <<<"$output")"
    elif ! grep -q -e "${must_say:-}" <<<"$output"; then
      result="FAILED: it does not say '$must_say'"
    fi
  fi
  say "- $name: $result ($((SECONDS - begin)) s)"
  if [[ "$result" == passed ]]; then return; fi
  failed=1
  end_of_output="$(tail -n 40 <<<"$output")"
  if [[ -z "${all_output:-}" && -n "$end_of_output" ]]; then say "
$end_of_output
"; fi
  return 1
}

# figures NAME SECONDS COMMAND...: a check whose output belongs to the results.
figures() {
  local status
  all_output=1 check "$@"
  status=$?
  if [[ -n "$output" ]]; then say "
$output
"; fi
  return "$status"
}

# find_nvrtc VERSION: sets $nvrtc to the NVRTC of this package, which it keeps among the programs.
find_nvrtc() {
  local wheel="$binaries/nvidia_cuda_nvrtc_cu11-$1-*.whl"
  if ! compgen -G "$wheel" >/dev/null; then
    check "NVRTC $1" 120 "$python" -m pip --disable-pip-version-check download -q --no-deps \
      --dest "$binaries" "nvidia-cuda-nvrtc-cu11==$1" || return
  fi
  "$python" -m zipfile -e "$(compgen -G "$wheel")" "$work/$1"
  # The compiled kernels are of an NVRTC with this time. zipfile does not keep the time of the package.
  find "$work/$1" -type f -exec touch -d @0 {} +
  nvrtc="$(ls "$work/$1"/nvidia/*/lib/libnvrtc.so.* | head -n 1)"
}

# The last NVRTC that does not know Hopper, nor any later GPU.
before_hopper=11.7.99
is_hopper_or_later() { ((${1%%.*} >= 9)); }

# Sets GLUON_SYNCBN_NVRTC, unless the user has set it.
use_nvrtc() {
  if [[ -n "${GLUON_SYNCBN_NVRTC:-}" ]]; then return; fi
  find_nvrtc 11.8.89 && export GLUON_SYNCBN_NVRTC="$nvrtc"
}

# build SECONDS: the programs.
build() {
  local limit="$1" objects=build/gpu-objects folder doctest='' program
  local programs=(time_gpu time_calls time_beside_kernel libgluon_syncbn.so) options=()
  for folder in ${DOCTEST+"$DOCTEST"} ${DOCTEST-/usr/include /usr/local/include}; do
    if [[ -f "$folder/doctest/doctest.h" ]]; then doctest="$folder"; fi
  done
  if [[ -n "$doctest" ]]; then
    programs+=(cuda_tests mxnet_tests_on_gpus compile_kernels)
    options=(-DGLUON_SYNCBN_BUILD_TESTS=ON "-DDOCTEST_INCLUDE_DIR=$doctest")
  else
    say "- tests: not built: no doctest/doctest.h (Debian: doctest-dev)"
    options=(-DGLUON_SYNCBN_BUILD_TESTS=OFF)
  fi
  check "configured" "$limit" cmake -S . -B "$objects" -DCMAKE_BUILD_TYPE=Release \
    -DGLUON_SYNCBN_BUILD_TIMES=ON \
    -DCMAKE_EXE_LINKER_FLAGS="-s -static-libstdc++ -static-libgcc" "${options[@]}" &&
    check "built" "$limit" cmake --build "$objects" --parallel "$(nproc)" \
      --target "${programs[@]/lib*/gluon_syncbn}" || return
  rm -rf "$binaries"
  mkdir -p "$binaries"
  for program in "${programs[@]}"; do cp "$objects/$program" "$binaries"; done
}

if [[ -n "${BUILD_FOR:-}" ]]; then
  end=$((SECONDS + 24 * 3600))
  build $((end - SECONDS)) || exit
  export XDG_CACHE_HOME="$binaries/cache"
  use_nvrtc || exit
  for capability in $BUILD_FOR; do
    figures "kernels for compute capability $capability" 600 \
      "$binaries/compile_kernels" "sm_${capability//./}" || exit
    if is_hopper_or_later "$capability"; then
      find_nvrtc "$before_hopper" || exit
      figures "kernels as PTX" 600 \
        env GLUON_SYNCBN_NVRTC="$nvrtc" "$binaries/compile_kernels" compute_86 || exit
    fi
  done
  rm "$binaries/compile_kernels"
  say "- $binaries: $(du -sm "$binaries" | cut -f 1) MB"
  exit
fi

if [[ $part != rest ]]; then
  say "One GPU cannot show: several GPUs, NCCL, a GPU that is lost. Without MXNet: its memory pool and streams.
"
fi
facts=name,driver_version,compute_cap,clocks.sm,clocks.max.sm,clocks.mem,pstate,temperature.gpu
gpu=(nvidia-smi "--query-gpu=$facts" --format=csv)
figures "GPU" 20 "${gpu[@]}"
capability="$(sed -n 2p <<<"$output" | cut -d , -f 3)"
if [[ -z "${BINARIES:-}" && $part != rest ]]; then build 300; fi
nvrtc_of_user="${GLUON_SYNCBN_NVRTC:-}"
use_nvrtc
# On the way, others may have got the right to write to the compiled kernels, and then the library does
# not take them. The right to run programs may be lost.
mkdir "$work/cache" "$work/empty"
if [[ -d "$binaries/cache" ]]; then cp -r "$binaries/cache/." "$work/cache"; fi
chmod -R go-w "$work"
chmod +x "$binaries"/{time_*,*tests*} 2>>"$log"
export XDG_CACHE_HOME="$work/cache"
check "libraries of the programs" 20 \
  bash -c '! ldd "$@" 2>&1 | grep "not found"' ldd "$binaries"/{time_*,*tests*}

# compiled_kernels FOLDER: how many lie there.
compiled_kernels() { find "$1" -type f | wc -l; }

export GLUON_SYNCBN_TEST_DEVICE=gpu
if [[ $part != rest ]]; then
  prepared="$(compiled_kernels "$work/cache")"
  check "kernels and backend" 90 "$binaries/cuda_tests"
  check "library on a fake MXNet" 30 "$binaries/mxnet_tests_on_gpus" --test-suite-exclude=end
  if ((prepared > 0 && $(compiled_kernels "$work/cache") != prepared)); then
    say "- the kernels that were carried here: FAILED: the tests have compiled others"
    failed=1
  fi
  # As users run it: on MXNet's NVRTC, and without what the tests above ask for.
  with_mxnet=(env -u GLUON_SYNCBN_TEST_DEVICE
    "GLUON_SYNCBN_NVRTC=$nvrtc_of_user"
    "GLUON_SYNCBN_LIBRARY=${GLUON_SYNCBN_LIBRARY:-$binaries/libgluon_syncbn.so}" "$python")
  mxnet='import gluon_syncbn, hypothesis, mxnet, pytest
assert mxnet.context.num_gpus() > 0, "MXNet finds no GPU"'
  if found="$(timeout 60 "${with_mxnet[@]}" -c "$mxnet" 2>&1)"; then
    must_say=passed check "MXNet on the GPU" 120 "${with_mxnet[@]}" -m pytest tests/gpu/test_gpu.py -k "not all_gpus"
  else
    say "- MXNet on the GPU: not run: $(tail -n 1 <<<"$found")"
  fi
  for folder in empty cache; do
    figures "first step, with the $folder folder of kernels" 20 \
      env XDG_CACHE_HOME="$work/$folder" "$binaries/time_gpu" float32
  done
  if (($(compiled_kernels "$work/empty") == 0)); then
    say "- kernels compiled here: FAILED: there are none"
    failed=1
  fi
  figures "times" 70 "$binaries/time_gpu"
  torch='import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'
  if "$python" -c "$torch"; then
    figures "PyTorch" 60 "$python" scripts/time_torch.py "$log"
  else
    say "- PyTorch: not run: no torch for $python"
  fi
  figures "GPU after the times" 20 "${gpu[@]}"
fi
if [[ $part != first ]]; then
  if [[ -z "$capability" ]]; then
    say "- kernels as PTX: not run: nvidia-smi names no compute capability"
  elif ! is_hopper_or_later "$capability"; then
    say "- kernels as PTX: not run: NVRTC $before_hopper knows this GPU"
  elif find_nvrtc "$before_hopper"; then
    # These cases use all kernels.
    cases="moments*,cuda kernels: small outputs*,cuda kernels: at 0*,passes: the same bits*"
    check "kernels as PTX" 90 env CUDA_CACHE_DISABLE=1 GLUON_SYNCBN_NVRTC="$nvrtc" \
      "$binaries/cuda_tests" "--test-case=cuda kernels: $cases,passes: in place*"
  fi
  figures "times of calls" 30 "$binaries/time_calls"
  for loading in LAZY EAGER; do
    figures "calls beside a kernel, $loading" 30 \
      env CUDA_MODULE_LOADING="$loading" "$binaries/time_beside_kernel"
  done
  # Time, bandwidth, hits of L2, stalls for want of instructions, occupancy. Kernels find the cache as
  # the kernels before have left it. float16 is channel-last.
  metrics=gpu__time_duration.sum,launch__registers_per_thread,dram__bytes.sum.per_second
  metrics+=,dram__throughput.avg.pct_of_peak_sustained_elapsed,lts__t_sector_hit_rate.pct
  metrics+=,smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio
  metrics+=,sm__warps_active.avg.pct_of_peak_sustained_active
  for dtype in float16 float32; do
    must_say=launch__registers_per_thread figures "profile of kernels, $dtype" 45 \
      ncu --print-summary per-kernel --replay-mode application --cache-control none \
      --clock-control none --metrics "$metrics" "$binaries/time_gpu" "$dtype"
  done
  figures "GPU after the profile" 20 "${gpu[@]}"
  check "library on the engine of MXNet 2" 30 env FAKE_MXNET_ENGINE_ARGUMENTS=4 \
    "$binaries/mxnet_tests_on_gpus" --test-suite-exclude=end \
    "--test-case-exclude=attributes*,update order*"

  # The tools look for corrupted memory, on small arrays, because they are slow. They take all
  # dtypes, activations, shortcuts and in place, in layouts that several blocks merge. The tools
  # share the time that is left.
  export GLUON_SYNCBN_TEST_ELEMENTS=2000
  sums="cuda kernels: moments*,cuda kernels: grad*"
  tools=(memcheck racecheck initcheck synccheck)
  for i in "${!tools[@]}"; do
    cases="$sums,cuda kernels: *outputs*,passes: in place*"
    if [[ ${tools[i]} == racecheck ]]; then cases="$sums"; fi # the slowest; no other kernel has barriers
    must_say=SUMMARY check "${tools[i]}" "$(((end - SECONDS) / (${#tools[@]} - i)))" \
      compute-sanitizer "--tool=${tools[i]}" --error-exitcode=9 --report-api-errors=no \
      "$binaries/cuda_tests" "--test-case=$cases"
  done
fi
exit "$failed"
