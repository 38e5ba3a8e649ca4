# shellcheck shell=bash disable=SC2034
# Other scripts source this, from any folder. For -h and --help it prints the comment at the beginning of
# the script.
case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

# Three processes of pytest keep two cores busy, because tests often wait. pytest-xdist waits forever for
# a process that crashed if it may start another one.
in_processes=(--numprocesses 3 --dist loadfile --max-worker-restart 0)

# build FOLDER TARGET [OPTION_OF_CMAKE...]: builds a target with the tools in PATH. CMake keeps the options
# of earlier calls. The log lies beside the folder.
build() {
  mkdir -p "$1"
  (
    flock 8 # Another process may build there, and write the log.
    { cmake -S . -B "$1" -G Ninja --log-level=WARNING \
      -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" "${@:3}" && cmake --build "$1" --target "$2"; } \
      >"$1.log" 2>&1 </dev/null || { cat "$1.log" && exit 1; }
  ) 8>"$1.lock"
}

# environment FOLDER ARGUMENT_OF_PIP...: makes a virtual environment with these packages, unless it is
# there. PYTHON is the interpreter.
environment() {
  local folder="$1" wanted="${*:2}" argument
  for argument in "${@:2}"; do
    if [[ -f "$argument" ]]; then wanted+=" $(cat "$argument")"; fi
  done
  if [[ "$(cat "$folder/installed" 2>/dev/null)" == "$wanted" ]] && "$folder/bin/python" -c ''; then
    return
  fi
  "${PYTHON:-python3}" -m venv --clear "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "${@:2}"
  printf '%s\n' "$wanted" >"$folder/installed"
}

# pins_for PYTHON: prints the options of pip for the versions of packages that the project is tested with.
pins_for() {
  if "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo --constraint scripts/constraints.txt
  fi
}

# Prints the command that starts programs at fixed addresses, if it is permitted. The thread sanitizer of
# older compilers does not start if the kernel randomizes more bits of addresses than it expects.
fixed_addresses() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    echo "setarch $(uname -m) -R"
  elif (($(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0) > 28)); then
    echo "test: note: 'setarch -R' is not permitted here; should the thread sanitizer stop with" \
      "'unexpected memory mapping', lower vm.mmap_rnd_bits to 28" >&2
  fi
}
