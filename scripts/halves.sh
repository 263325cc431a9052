#!/bin/sh
# All tests in two halves side by side, since one process uses one core: `halves.sh PYTHON [pytest's arguments]`.
# The store's, the kernels' and the live ones run behind, and what they say comes last. Fails when a half fails.
python=$1
shift
for word in "$@"; do
    [ -e "${word%%::*}" ] && exec "$python" -m pytest "$@" # told which: there is nothing to halve
done
log=$(mktemp)
behind=
trap '[ -z "$behind" ] || kill "$behind" 2>/dev/null; rm -f "$log"' EXIT
trap 'exit 130' INT TERM HUP

"$python" -m pytest -o cache_dir=.pytest_cache/store tests/kvstore tests/kernels tests/live "$@" >"$log" 2>&1 &
behind=$!
"$python" -m pytest -o cache_dir=.pytest_cache/rest tests --ignore=tests/kvstore --ignore=tests/kernels --ignore=tests/live "$@"
rest=$?
wait "$behind"
store=$?
behind=
cat "$log"
# 5: nothing was selected (by -k, say) in this half.
[ "$rest" -eq 5 ] && [ "$store" -eq 5 ] && exit 5
[ "$rest" -eq 5 ] && rest=0
[ "$store" -eq 5 ] && store=0
[ "$rest" -ne 0 ] && exit "$rest"
exit "$store"
