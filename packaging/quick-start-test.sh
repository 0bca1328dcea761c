#!/usr/bin/env bash
# Runs the unmodified commands of docs/first-hour.md, from three fresh machines to the first answer, and measures their time:
# packaging/quick-start-test.sh [FOLDER with the .deb, default target/debian]. Three containers under a real systemd on a bridge of
# their own, 192.168.1.11 to 13. Root; Debian's debootstrap and systemd-container. Leaves no process and no network behind. Exit code
# 77: no base system can be created here, or it does not boot.
set -euo pipefail
cd "$(dirname "$0")/.."
debs=${1:-target/debian}
base=target/boot/base-amd64
work=$PWD/target/boot/quick
space=bramble-quick-$$
declare -A nspawn init
nodes="1 2 3"

finish() {
    local code=$? node
    for node in $nodes; do
        kill -TERM "${nspawn[$node]:-x}" 2>/dev/null || true
    done
    for node in $nodes; do
        for _ in $(seq 50); do kill -0 "${nspawn[$node]:-x}" 2>/dev/null || break; sleep 0.2; done
        kill -KILL "${nspawn[$node]:-x}" 2>/dev/null || true
    done
    ip netns del "$space" 2>/dev/null || true
    rm -rf "$work"
    [ $code -eq 0 ] || [ $code -eq 77 ] || echo "quick-start-test: FAILED" >&2
}
trap finish EXIT
impossible() { echo "quick-start-test: $*" >&2; exit 77; }
# Runs a command in a container as root: ctr NODE COMMAND..
ctr() {
    local node=$1
    shift
    setsid -w nsenter -t "${init[$node]}" -a -- /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"
}
lines() { awk -v kind="\`\`\`sh $1" '$0 == kind {on = 1; next} /^```/ {on = 0} on' docs/first-hour.md; }

[ -e "$base.ready" ] || { mkdir -p "$base"; debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps,iproute2 bookworm "$base" >"$base.log" 2>&1 && touch "$base.ready"; } ||
    impossible "no base system; see $base.log"
rm -rf "$work"
ip netns add "$space"
ip -n "$space" link add br0 type bridge
ip -n "$space" link set br0 up
ip -n "$space" link set lo up
for node in $nodes; do
    root=$work/$node
    mkdir -p "$work"
    cp -a --reflink=auto "$base" "$root"
    cp "$debs"/bramble-*_amd64.deb "$root/opt/"
    echo "pi$node" >"$root/etc/hostname"
    echo 'APT::Get::Assume-Yes "true";' >"$root/etc/apt/apt.conf.d/yes"
    # The base is minimal, and the commands run as root already.
    printf '#!/bin/sh\nexec "$@"\n' >"$root/usr/bin/sudo"
    chmod +x "$root/usr/bin/sudo"
    rm -f "$root/etc/machine-id"
    # `ip netns exec` would hide the control groups.
    nsenter --net="/run/netns/$space" systemd-nspawn -q -D "$root" --machine="quick$$-$node" --network-bridge=br0 --register=no --keep-unit --capability=CAP_IPC_LOCK --boot \
        --console=read-only </dev/null >"target/boot/quick-$node.log" 2>&1 &
    nspawn[$node]=$!
done
for node in $nodes; do
    init[$node]=
    for _ in $(seq 150); do
        init[$node]=$(pgrep -P "${nspawn[$node]}" -x systemd || true)
        [ -n "${init[$node]}" ] && break
        sleep 0.2
    done
    [ -n "${init[$node]}" ] || impossible "container $node does not boot; see target/boot/quick-$node.log"
    for _ in $(seq 300); do
        ctr "$node" systemctl is-system-running 2>/dev/null | grep -qE "running|degraded" && break
        sleep 0.2
    done
    ctr "$node" ip address add "192.168.1.1$node/24" dev host0
    ctr "$node" ip link set host0 up
done

begin=$SECONDS
commands=0
codes=
while IFS= read -r line; do
    commands=$((commands + 1))
    printf -- '-- on each: %s\n' "$line"
    for node in $nodes; do
        ctr "$node" sh -c "cd /opt && $line" </dev/null >"target/boot/quick-command.log" 2>&1 || { cat target/boot/quick-command.log >&2; exit 1; }
        case $line in
            *pair*)
                # A code consists of words joined by dashes.
                code=$(grep -oE -- '--code [A-Za-z0-9-]+' target/boot/quick-command.log | head -1 | cut -d' ' -f2)
                [ -n "$code" ] || { cat target/boot/quick-command.log >&2; exit 1; }
                codes=${codes:+$codes,}$code
                ;;
        esac
    done
done < <(lines quick-start-node)
while IFS= read -r line; do
    commands=$((commands + 1))
    printf -- '-- on pi1: %s\n' "$line"
    ctr 1 sh -c "cd /opt && ${line//CODE,CODE,CODE/$codes}" </dev/null
done < <(lines quick-start)
echo "quick-start-test: passed, $commands commands, $((SECONDS - begin)) s from the first command to the first answer"
[ $commands -le 6 ] && [ $((SECONDS - begin)) -le 300 ]
