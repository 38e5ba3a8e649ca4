#!/usr/bin/env bash
# Builds a release in dist/ from the last commit: the sdist and one wheel. The wheel runs on Python
# 3.8 and later, on every x86-64 Linux of MXNet 1.9.1's own wheels (manylinux2014). It compiles its GPU
# kernels where it runs, so it serves every GPU and every CUDA from 11.2 on. dist/SHA256SUMS has the
# checksums of both.
#
#   scripts/build_wheels.sh
#
# Needs g++ (11 and 12 are tested).
#
# Environment:
#   PYTHON                      interpreter for the tools, 3.10 or later (default: python3)
#   CMAKE_BUILD_PARALLEL_LEVEL  how many compilers run at a time
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
platform=manylinux2014_x86_64

say() { printf 'wheels: %s\n' "$*"; }
die() {
  printf 'wheels: error: %s\n' "$*" >&2
  exit 1
}

# Prints the first error of CMake, a compiler or the linker. The end of the log has only the programs
# that called them.
first_error() {
  grep -m 1 -A 6 -E '(^|: )(fatal )?error:|^ *CMake Error|undefined reference|cannot find -l' "$1" ||
    tail -n 40 "$1"
}

if (($#)); then die "unknown option $1 (try --help)"; fi

work="$root/build/wheels"
rm -rf "$work"
mkdir -p "$work"
if [[ -n "$(git status --porcelain)" ]]; then say "note: the release leaves out changes that are not committed"; fi
git clone --quiet --no-hardlinks "$root" "$work/source"
"${PYTHON:-python3}" -m venv "$work/venv"
export PATH="$work/venv/bin:$PATH"
python -m pip install --quiet --disable-pip-version-check -r scripts/requirements-wheels.txt

say "building the sdist, and the wheel from it; all output is in $work/log"
CMAKE_ARGS="${CMAKE_ARGS:-} -DGLUON_SYNCBN_PORTABLE=ON -DGLUON_SYNCBN_WERROR=ON" \
  python -m build --outdir "$work/dist" "$work/source" >"$work/log" 2>&1 </dev/null ||
  { first_error "$work/log" >&2 && die "the build has failed"; }

# Fails, and names the symbols, if the library needs newer ones than the tag allows.
auditwheel repair --strip --plat "$platform" --wheel-dir "$work/repaired" "$work"/dist/*.whl
mkdir -p dist
cp "$work"/dist/*.tar.gz "$work"/repaired/*.whl dist
wheel="$(cd "$work/repaired" && echo *.whl)"
sdist="$(cd "$work/dist" && echo *.tar.gz)"
auditwheel show "dist/$wheel"
python -m twine check --strict "dist/$wheel" "dist/$sdist"
(cd dist && sha256sum -- "$sdist" "$wheel" >SHA256SUMS)
say "dist/$wheel: $(($(stat -c %s "dist/$wheel") / 1024)) KiB"
