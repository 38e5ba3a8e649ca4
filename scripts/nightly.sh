#!/usr/bin/env bash
# Runs the tests that draw cases at random, with another seed and many more cases. Trains for long, in
# several processes, every network of GluonCV, and in the surroundings that users have.
#
#   scripts/nightly.sh [SEED]    (default: today's date)
#
# A part that fails stops no other part. Each part prints the command that repeats it. Native tests also
# name the seed of the failing case: TEST_SEED=SEED and TEST_CASES=1 run that case alone.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seed="${1:-$(date +%Y%m%d)}"
logs="build/nightly"
mkdir -p "$logs"
scripts/setup.sh --test
export PATH="$PWD/.venv/bin:$PATH"

rm -f "$logs"/*.failed
part() { # NAME COMMAND
  local begin="$SECONDS" result=passed
  # doctest passes without a test.
  if ! (eval "$2") >"$logs/$1.log" 2>&1 || grep -q 'test cases: *0 ' "$logs/$1.log"; then
    result=FAILED
    tail -n 100 "$logs/$1.log" | tee "$logs/$1.failed"
  fi
  printf 'nightly: %s %s in %d s: %s\n' "$1" "$result" $((SECONDS - begin)) "$2"
}

options=(-DGLUON_SYNCBN_BUILD_TESTS=ON -DCMAKE_BUILD_TYPE=Debug)
build build/native-thread native_tests "${options[@]}" -DGLUON_SYNCBN_SANITIZE=thread
build build/native-address mxnet_tests "${options[@]}" -DGLUON_SYNCBN_SANITIZE=address
drawn="TEST_SEED=$seed TEST_CASES=33334 $(fixed_addresses) build/native-thread/native_tests"
pytest="pytest -q ${in_processes[*]}"
for kind in every "the same" whatever; do
  part "schedules-${kind##* }" "$drawn '--test-case=schedules: $kind*'" &  # in parallel, because they mostly sleep
done
part attributes "TEST_SEED=$seed TEST_CASES=1000000 build/native-address/mxnet_tests \
'--test-case=attributes: garbage*'"
part programs "TEST_CASES=2500 $pytest --hypothesis-profile=nightly --hypothesis-seed=$seed \
--timeout=0 -k any_ tests/layer tests/networks/test_drawn_networks.py"
part soak "SOAK_STEPS=50000 $pytest --timeout=0 tests/layer/test_soak.py"
part networks "$pytest --all-networks tests/networks"
part processes "scripts/test.sh --cu112 --distributed"
part surroundings "scripts/surroundings.sh"
wait
if compgen -G "$logs/*.failed" >/dev/null; then
  echo "nightly: seed $seed: failed:" "$logs"/*.failed
  exit 1
fi
echo "nightly: seed $seed: all passed"
