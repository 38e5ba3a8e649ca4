#!/usr/bin/env bash
# Runs some of the tests in surroundings that users have: without a terminal, with an empty environment,
# on a busy machine and others. The tests are those that start processes, write files or wait.
#
#   scripts/surroundings.sh [NAME...]     (default: all; the names are those of the functions below)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh --test
folder="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT

tests=(
  tests/layer/test_{faults,forks,life,run,standstill}.py
  tests/machine/test_{diagnose,environment,notebooks,nvidia_libraries}.py
  tests/export/test_{command_line,released_files}.py
)
pytest=("$PWD/.venv/bin/python" -m pytest -q -p no:cacheprovider "${in_processes[@]}" "${tests[@]}")

all=(
  job_in_the_background empty_environment no_home home_is_read_only temporary_folder other_locale
  private_files few_open_files one_core busy_machine another_user folder_with_blanks_and_umlauts
)

skip() { # REASON
  echo "surroundings: SKIPPED: $1"
  exit
}

job_in_the_background() { # ignores SIGINT, and has no terminal
  (trap '' INT && setsid --wait "${pytest[@]}" </dev/null)
}

empty_environment() { env -i PATH="$PATH" "${pytest[@]}"; }

no_home() { env -u HOME -u XDG_CACHE_HOME "${pytest[@]}"; }

home_is_read_only() {
  mkdir "$folder/home"
  if ((EUID == 0)); then # whom permissions do not stop
    unshare --mount true || skip "a container that may not mount"
    unshare --mount bash -euc 'mount -t tmpfs -o ro tmpfs "$1" && HOME="$1" exec "${@:2}"' - \
      "$folder/home" "${pytest[@]}"
  else
    chmod a-w "$folder/home"
    HOME="$folder/home" "${pytest[@]}"
  fi
}

temporary_folder() {
  mkdir "$folder/für den Moment"
  TMPDIR="$folder/für den Moment" "${pytest[@]}"
}

other_locale() { LANG=C LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 "${pytest[@]}"; }

private_files() { (umask 077 && "${pytest[@]}"); }

few_open_files() { (ulimit -n 256 && "${pytest[@]}"); }

one_core() { taskset --cpu-list 0 "${pytest[@]}"; }

busy_machine() {
  for _ in {1..20}; do
    while kill -0 $$ 2>/dev/null; do :; done &
  done
  "${pytest[@]}"
}

another_user() { # who may not write in the repository, and may not call sudo
  local as_nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups --no-new-privs)
  if ((EUID != 0)) || ! "${as_nobody[@]}" .venv/bin/python -c ''; then
    skip "needs root, and a Python that all users may call"
  fi
  "${as_nobody[@]}" env -i PATH=/usr/bin:/bin "${pytest[@]}"
}

folder_with_blanks_and_umlauts() {
  git clone --quiet . "$folder/Mein schönes Netz"
  "$folder/Mein schönes Netz/scripts/test.sh" --python-only "${tests[@]}"
}

if (($# == 1)); then
  if [[ " ${all[*]} " != *" $1 "* ]]; then
    echo "surroundings: '$1' is none of: ${all[*]}" >&2
    exit 2
  fi
  printf '\nsurroundings: %s\n' "$1"
  "$1"
  exit
fi
if (($#)); then all=("$@"); fi
failed=()
for each in "${all[@]}"; do scripts/surroundings.sh "$each" || failed+=("$each"); done
if ((${#failed[@]})); then
  echo "surroundings: failed: ${failed[*]}" >&2
  exit 1
fi
echo "surroundings: none failed"
