#!/usr/bin/env bash
# Kernel instructions per multiply-add on a Cortex-A76 and a Cortex-A72, counted by qemu: the same number in every run
# of a binary. usage: tests/aarch64/count.sh BRAMBLED [--check]; --check fails if a count is more than 5 % above the
# recorded one (two builds of the same source in different folders differed by 2 %).
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 BRAMBLED [--check]; BRAMBLED is an aarch64 binary, as .ci/aarch64 builds it" >&2; exit 2; }
brambled=$(realpath "$1") check=${2:-}
cd "$(dirname "$0")"
rows=64 columns=2048
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gcc -O2 -shared -fPIC instructions.c -o "$work/instructions.so"

instructions() { # CPU FORMAT TOKENS REPEATS
    qemu-aarch64 -cpu "$1" -plugin "$work/instructions.so" "$brambled" bench kernels --formats "$2" --tokens "$3" \
        --repeats "$4" --rows $rows --columns $columns 2>&1 >/dev/null | awk '/^instructions/ { print $2 }'
}

failed=0
printf '%-12s %-8s %7s %20s %9s\n' cpu format tokens instructions/mac recorded
while read -r cpu format tokens recorded; do
    [ -n "$cpu" ] && [ "${cpu#\#}" = "$cpu" ] || continue
    # Cost of the products alone: the difference between 5 repeats and 1.
    few=$(instructions "$cpu" "$format" "$tokens" 1)
    many=$(instructions "$cpu" "$format" "$tokens" 5)
    found=$(awk -v few="$few" -v many="$many" -v macs=$((rows * columns * tokens)) \
        'BEGIN { printf "%.4f", (many - few) / 4 / macs }')
    printf '%-12s %-8s %7s %20s %9s\n' "$cpu" "$format" "$tokens" "$found" "$recorded"
    if [ -n "$check" ] && awk -v found="$found" -v recorded="$recorded" 'BEGIN { exit !(found > recorded * 1.05) }'; then
        echo "$cpu $format with $tokens tokens takes more instructions than recorded in tests/aarch64/counts.txt" >&2
        failed=1
    fi
done < counts.txt
exit $failed
