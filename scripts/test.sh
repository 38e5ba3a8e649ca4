#!/usr/bin/env bash
# Runs the native tests and the Python tests. Tests with several processes are skipped unless Horovod is
# installed, which --distributed does.
#
#   scripts/test.sh [--python-only | --native-only] [options for pytest]
#   scripts/test.sh --sanitizers     the native tests under the thread sanitizer, and under the
#                                    sanitizers of addresses and of undefined behaviour
#   scripts/test.sh --wheel          builds the wheel and imports it
#   scripts/test.sh --distributed    several processes on one host
#   scripts/test.sh --hosts          several processes, on one host and on two (namespaces; as root)
#   scripts/test.sh --mxnet2         the tests of the layer on MXNet 2
#   scripts/test.sh --cu112          GPU contexts, on a CUDA runtime without a GPU
#   scripts/test.sh --cu112 --mxnet2         the same on MXNet 2
#   scripts/test.sh --cu112 --distributed    the same in several processes (scripts/test_cu112.sh)
#
# The option --all-networks for pytest trains every network of docs/gluoncv.md instead of a few of
# each kind, which takes 10 minutes more. With --write-gluoncv-table it also writes the table there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

parts=(native python)
case "${1:-}" in
  --python-only | --native-only | --sanitizers | --wheel)
    part="${1#--}"
    parts=("${part%-only}")
    shift
    ;;
  --distributed | --hosts)
    tests=(tests/distributed)
    if [[ "$1" == --distributed ]]; then tests+=(--ignore tests/distributed/test_hosts.py); fi
    scripts/setup.sh --test --distributed
    if [[ "$1" == --hosts && ! -x /usr/sbin/sshd ]] && command -v apt-get >/dev/null; then
      # RUNLEVEL=1 keeps the package from starting the server.
      RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        iproute2 openssh-server || echo "test: note: without sshd there are no two hosts"
    fi
    exec .venv/bin/pytest "${tests[@]}" "${@:2}"
    ;;
  --mxnet2)
    parts=(mxnet2)
    shift
    ;;
  --cu112)
    shift
    exec scripts/test_cu112.sh "$@"
    ;;
esac

scripts/setup.sh --test
# CMake, CTest and Ninja are in .venv.
export PATH="$PWD/.venv/bin:$PATH"

# build_and_run NAME TARGET [OPTION_OF_CMAKE...]: builds in build/native-NAME, and runs the tests.
build_and_run() {
  printf '\ntest: native tests, build/native-%s\n' "$1"
  build "build/native-$1" "$2" -DGLUON_SYNCBN_BUILD_TESTS=ON -DGLUON_SYNCBN_WERROR=ON "${@:3}"
  # Runs more tests at a time than there are cores, because they often wait.
  $(fixed_addresses) ctest --test-dir "build/native-$1" --parallel "$((2 * $(nproc)))" \
    --output-on-failure --no-tests=error
}

native() {
  # "all" compiles the shared library too, so that a warning in any source fails here.
  build_and_run plain all
}

sanitizers() {
  export TSAN_OPTIONS="second_deadlock_stack=1:${TSAN_OPTIONS:-}"
  export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
  local name
  for name in thread address; do
    build_and_run "$name" test_programs -DCMAKE_BUILD_TYPE=Debug "-DGLUON_SYNCBN_SANITIZE=$name"
  done
}

# Builds the wheel in a shorter way than scripts/build_wheels.sh, and imports it outside of the
# repository. The Python tests use the package in place; this tests the other way to install it.
wheel() {
  printf '\ntest: wheel\n'
  local folder="$PWD/build/wheel" python="$PWD/.venv/bin/python" name limit newest
  # setuptools would also pack files of earlier builds that are no longer in the repository.
  rm -rf "$folder" build/lib build/lib.* build/bdist.*
  mkdir -p "$folder"
  CMAKE_ARGS="${CMAKE_ARGS:-} -DGLUON_SYNCBN_PORTABLE=ON" \
    "$python" -m pip wheel --disable-pip-version-check --no-deps -w "$folder" . \
    >"$folder/log" 2>&1 </dev/null || { cat "$folder/log" && return 1; }
  name="$(cd "$folder" && echo gluon_syncbn-*-py3-none-*.whl)"
  "$python" -m zipfile -e "$folder/$name" "$folder/installed"
  # auditwheel demands the same of a release (manylinux2014).
  objdump -T "$folder/installed/gluon_syncbn/libgluon_syncbn.so" >"$folder/symbols"
  for limit in GLIBC_2.17 GLIBCXX_3.4.19 CXXABI_1.3.7; do
    newest="$({ echo "$limit" && grep -o "${limit%%_*}_[0-9.]*" "$folder/symbols"; } | sort -V | tail -n 1)"
    if [[ "$newest" != "$limit" ]]; then
      echo "$name: cmake/portable has nothing older than $newest for" >&2
      grep -F "$newest" "$folder/symbols" >&2
      return 1
    fi
  done
  (cd "$folder/installed" && "$python" -W ignore -c \
    'import gluon_syncbn, os; assert gluon_syncbn.__file__.startswith(os.getcwd())')
  # Errors name this page.
  cmp docs/troubleshooting.md "$folder/installed/gluon_syncbn/docs/troubleshooting.md"
  echo "$name: ok"
}

python() {
  printf '\ntest: Python tests\n'
  pytest "${in_processes[@]}" "$@"
}

# Runs the tests on MXNet 2, in .venv-mxnet2, with the same native library.
mxnet2() {
  printf '\ntest: Python tests on MXNet 2\n'
  PYTHON=.venv/bin/python environment .venv-mxnet2 --requirement scripts/requirements-mxnet2.txt
  # Tests that ask for Module, GluonCV and the like skip themselves.
  # MXNET2_PACKAGES: scripts/others.sh puts the Python package of a fork there.
  PYTHONPATH="$PWD${MXNET2_PACKAGES:+:$MXNET2_PACKAGES}" .venv-mxnet2/bin/python -m pytest \
    "${in_processes[@]}" \
    tests/layer tests/machine/test_cpu_{contexts,workspaces}.py tests/machine/test_diagnose.py::test_without_gpus \
    tests/networks/test_{dist_sync,model_zoo}.py \
    tests/export/test_{export,fold,deploy,command_line,onnx}.py \
    tests/scripts/test_examples.py::test_fcn_numpy "$@"
}

mkdir -p build
for part in "${parts[@]}"; do "$part" "$@"; done
