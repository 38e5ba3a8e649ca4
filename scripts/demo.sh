#!/usr/bin/env bash
# Sets up .venv when needed and runs the demo; all options go to the demo (--help).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
exec .venv/bin/python scripts/demo.py "$@"
