#!/usr/bin/env bash
# Sets up .venv if necessary and runs the demo, which gets all options (--help).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
exec .venv/bin/python scripts/demo.py "$@"
