#!/usr/bin/env bash
# Sets up .venv, checks the code with ruff and runs the tests.
# Arguments go on to pytest, with paths from the top of the checkout:
#   bash scripts/test.sh tests/test_modeling.py -k cache
#   bash scripts/test.sh -m slow       the slow tests
#   bash scripts/test.sh -n 0 --pdb    one process, with the debugger
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(bash "$root/scripts/setup.sh" test,lint)
cd "$root"

# The tests use no network and need none.
export HF_HUB_OFFLINE=1
# One thread per worker: the workers already fill the cores, and more threads slow each other down.
export TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}"
# As many workers as cores this process may use. At most 4, because each one holds torch in memory.
if [ -z "${PYTEST_XDIST_AUTO_NUM_WORKERS:-}" ]; then
    PYTEST_XDIST_AUTO_NUM_WORKERS=$("$python" -c '
import os
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
print(min(cores, 4))')
    export PYTEST_XDIST_AUTO_NUM_WORKERS
fi

# A lint failure does not hide the test results, but it does fail the run.
lint=0
"$python" -m ruff check . || lint=1
"$python" -m ruff format --check . || lint=1

tests=0
"$python" -m pytest -n auto "$@" || tests=$?
if [ "$tests" -eq 0 ] && [ "$lint" -ne 0 ]; then
    echo "test.sh: the tests passed, but ruff found problems (above)." >&2
    exit 1
fi
exit "$tests"
