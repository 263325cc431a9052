#!/bin/sh
# check_python.sh PYTHON: is this interpreter new enough, and can it make virtual environments? One line each if not.
set -eu

python=${1:-}
if [ -z "$python" ]; then
    if command -v python3 >/dev/null 2>&1; then
        echo "kvscope needs Python 3.11 or newer; python3 here is $(python3 --version 2>&1)." >&2
    else
        echo "kvscope needs Python 3.11 or newer; there is no python3 here." >&2
    fi
    echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or run: make PYTHON=/path/to/python3 ..." >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "kvscope needs Python 3.11 or newer; $python is not." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "Python's venv module is missing. Install it (Debian, Ubuntu: apt-get install python$version-venv) and try again." >&2
    exit 1
fi
