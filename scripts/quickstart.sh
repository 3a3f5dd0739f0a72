#!/usr/bin/env bash
# Sets up .venv, then runs scripts/quickstart.py in the folder you are in.
# Arguments go on to it: bash scripts/quickstart.sh --help
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$(bash "$scripts/setup.sh" train)
exec "$python" "$scripts/quickstart.py" "$@"
