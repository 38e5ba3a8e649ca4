#!/usr/bin/env bash
# Checks the style and the types of all sources, and bash for mistakes. "scripts/lint.sh --fix" repairs
# what it can.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fix=0
case "${1:-}" in
  "") ;;
  --fix) fix=1 ;;
  *)
    echo "usage: scripts/lint.sh [--fix]" >&2
    exit 2
    ;;
esac

scripts/setup.sh --test
bin="$PWD/.venv/bin"

python_sources=(setup.py gluon_syncbn scripts examples tests)
mapfile -d '' -t native_sources < <(find src cmake scripts/benchmarks tests/native tests/gpu \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0)

if ((fix)); then
  "$bin/ruff" check --fix "${python_sources[@]}"
  "$bin/ruff" format "${python_sources[@]}"
  "$bin/clang-format" -i "${native_sources[@]}"
fi

# Runs all checks even if one fails.
failed=()
check() {
  printf 'lint: %s\n' "$1"
  "${@:2}" || failed+=("$1")
}
check "ruff check" "$bin/ruff" check --quiet "${python_sources[@]}"
check "ruff format" "$bin/ruff" format --quiet --check "${python_sources[@]}"
check "includes" "$bin/python" scripts/check_includes.py
check "mypy" "$bin/mypy" --no-error-summary gluon_syncbn scripts examples
# pins_for prints several words, so its output is not quoted.
check "shellcheck" "$bin/shellcheck" --external-sources --source-path=SCRIPTDIR --severity=warning \
  --exclude=SC2046 .ci/run scripts/*.sh
# Prints only the first place in each file.
check "clang-format" "$bin/clang-format" --dry-run -Werror --ferror-limit=1 "${native_sources[@]}"

if ((${#failed[@]})); then
  printf 'lint: failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
echo "lint: ok"
