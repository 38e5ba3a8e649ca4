# test.sh, nightly.sh and test_gpu_kernels.py source this, with the tools of .venv in PATH.

# The thread sanitizer of older compilers does not start if the kernel randomizes more bits of addresses
# than this sanitizer expects. setarch -R starts programs at fixed addresses.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
  fixed_addresses=(setarch "$(uname -m)" -R)
elif (($(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0) > 28)); then
  echo "test: note: 'setarch -R' is not permitted here; should the thread sanitizer stop with" \
    "'unexpected memory mapping', lower vm.mmap_rnd_bits to 28"
fi

# build_native_tests NAME BUILD_TYPE SANITIZER TARGET LOG [OPTION_OF_CMAKE...]: builds in
# build/native-NAME.
build_native_tests() {
  local folder="build/native-$1" target="$4" log="$5"
  { cmake -S . -B "$folder" -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE="$2" \
    -DGLUON_SYNCBN_BUILD_TESTS=ON -DGLUON_SYNCBN_SANITIZE="$3" "${@:6}" &&
    cmake --build "$folder" --target "$target"; } >"$log" 2>&1 ||
    { cat "$log" && return 1; }
}
