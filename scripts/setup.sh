#!/usr/bin/env bash
# Makes .venv at the top of the checkout, or brings it up to date, and prints the path of its Python.
#   bash scripts/setup.sh [EXTRAS]     for example: bash scripts/setup.sh test,lint
#
# PYTHON                the Python to make it with; any from 3.11 on (default: the first that fits)
# HF_TRANSFORMER_VENV   where to make it (default: .venv)
#
# Only the path goes to standard output, so that other scripts can read it; the rest goes to standard error.
set -euo pipefail

extras=${1:-dev}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${HF_TRANSFORMER_VENV:-$root/.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
# Tells environments made here, which may be thrown away and made anew, from ones that are not ours to remove.
mark=$venv/.made-by-setup
stamp=$venv/.setup-$extras
log=$venv/setup.log
# Only the translation files (*.po) inside these are read. Their code is never imported, hence no dependencies.
data=(django wagtail django-cms django-oscar)

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# Fails with 3 if $1 is no Python from 3.11 on, with 4 if it cannot make an environment.
usable() {
    "$1" -c '
import sys
from importlib.util import find_spec
if sys.version_info < (3, 11):
    sys.exit(3)
# Debian and Ubuntu ship venv without ensurepip, which it needs, unless python3-venv is installed.
if not (find_spec("venv") and find_spec("ensurepip") or find_spec("virtualenv")):
    sys.exit(4)
' 2>/dev/null
}

find_python() {
    local candidate rc without_venv=
    if [ -n "${PYTHON:-}" ]; then
        rc=0; usable "$PYTHON" || rc=$?
        case $rc in
            0) echo "$PYTHON"; return ;;
            3) die "PYTHON is $PYTHON, which is older than Python 3.11." ;;
            4) without_venv=$PYTHON ;;
            *) die "PYTHON is $PYTHON, which does not run." ;;
        esac
    else
        for candidate in python3 python3.13 python3.12 python3.11; do
            rc=0; usable "$candidate" || rc=$?
            if [ "$rc" -eq 0 ]; then echo "$candidate"; return; fi
            if [ "$rc" -eq 4 ]; then without_venv=${without_venv:-$candidate}; fi
        done
    fi
    [ -z "$without_venv" ] || die "$without_venv cannot make environments: install its venv package" \
        "(python3-venv on Debian and Ubuntu) or virtualenv, or set PYTHON to another Python."
    die "found no Python 3.11 or newer: install one, or set PYTHON to its path."
}

# Whether the environment runs, is whole, and belongs to $PYTHON if that is set.
sound() {
    "$venv/bin/python" -I - 2>/dev/null <<'PY' || return 1
import sys, sysconfig
from importlib.util import find_spec
from pathlib import Path
site = Path(sysconfig.get_path("purelib"))
assert sys.version_info >= (3, 11) and sys.prefix != sys.base_prefix and find_spec("pip")
# RECORD is the last file pip writes, and it moves what it replaces to names that begin with "~":
# an install that was killed shows here, where pip itself would take the package for complete.
assert all((info / "RECORD").exists() for info in site.glob("*.dist-info")) and not any(site.glob("~*"))
PY
    local version='import sys; print(sys.version)'
    [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -c "$version" 2>/dev/null)" = "$("$venv/bin/python" -c "$version")" ]
}

# Everything that decides what gets installed, as one hash.
wanted() {
    "$venv/bin/python" -I - "$root" "$extras" <<'PY'
import hashlib, re, sys
from pathlib import Path
root = Path(sys.argv[1])
parts = [repr(sys.argv[1:]).encode()]
parts += [(root / name).read_bytes() for name in ("pyproject.toml", "scripts/constraints.txt", "scripts/setup.sh")]
parts += re.findall(rb"^__version__.*", (root / "hf_transformer/__init__.py").read_bytes(), re.M)
print(hashlib.sha256(b"\0".join(parts)).hexdigest())
PY
}

make_venv() {
    local python
    python=$(find_python)
    if [ -e "$mark" ]; then
        say "$venv is incomplete or belongs to another Python; making it anew."
        # All but the mark, so that a removal cut short can be finished next time.
        find "$venv" -mindepth 1 -maxdepth 1 ! -path "$mark" -exec rm -rf -- {} +
    elif [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
        die "$venv is not an environment that works, and was not made here; remove it, or set HF_TRANSFORMER_VENV."
    fi
    mkdir -p "$venv"
    touch "$mark"
    say "making $venv with $("$python" -V) ..."
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv "$venv" >&2
    else
        "$python" -m virtualenv -q "$venv" >&2
    fi
}

pip_install() {
    # These settings, meant for other uses of pip, would put the packages outside the environment.
    env -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$venv/bin/python" -I -m pip install --no-input --progress-bar off \
        -c "$root/scripts/constraints.txt" "$@" >> "$log" 2>&1 ||
        { tail -n 20 "$log" >&2; die "the installation failed; above is the end of $log"; }
}

sound || make_venv
hash=$(wanted)
if [ "$(cat "$stamp" 2>/dev/null)" != "$hash" ]; then
    say "installing hf_transformer[$extras]; the first time takes some minutes (pip's log: $log) ..."
    rm -f -- "$stamp" "$log"
    start=$SECONDS
    pip_install --no-warn-conflicts -e "${root}[$extras]"
    pip_install --no-deps --no-compile "${data[@]}"
    echo "$hash" > "$stamp"
    say "installed in $((SECONDS - start)) seconds."
fi
echo "$venv/bin/python"
