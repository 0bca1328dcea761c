#!/usr/bin/env bash
# Installs the packages of one architecture under a real systemd and asserts the behaviour of a node:
# packaging/boot-test.sh amd64|arm64 [FOLDER with the .deb, default target/debian]. Root; Debian's debootstrap and
# systemd-container; for arm64 also qemu-user-static. Leaves no process and no mount behind. Exit code 77: no base system
# can be created here, or it does not boot.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=${1:?amd64 or arm64}
debs=${2:-target/debian}
base=target/boot/base-$arch
work=$PWD/target/boot/$arch
binfmt=/proc/sys/fs/binfmt_misc
registered=no
mounted=no
nspawn=

finish() {
    local code=$?
    if [ -n "$nspawn" ] && kill -0 "$nspawn" 2>/dev/null; then
        kill -TERM "$nspawn" 2>/dev/null || true
        for _ in $(seq 50); do kill -0 "$nspawn" 2>/dev/null || break; sleep 0.2; done
        kill -KILL "$nspawn" 2>/dev/null || true
    fi
    if [ "$registered" = yes ]; then echo -1 >$binfmt/qemu-aarch64 || true; fi
    if [ "$mounted" = yes ]; then umount $binfmt || true; fi
    rm -rf "$work"
    [ $code -eq 0 ] || [ $code -eq 77 ] || echo "boot-test $arch: FAILED" >&2
}
trap finish EXIT
fail() { echo "boot-test $arch: $*" >&2; ctr journalctl -u brambled --no-pager -o cat | tail -20 >&2 || true; exit 1; }
impossible() { echo "boot-test $arch: $*" >&2; exit 77; }
step() { printf -- '-- %s\n' "$1"; }
# Runs a command in the container as root.
ctr() {
    setsid -w nsenter -t "$init" -a -- \
        /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"
}
property() { ctr systemctl show brambled -p "$1" --value; }
# Waits until a command succeeds: within SECONDS WHAT COMMAND..
within() {
    local end=$((SECONDS + $1 * slow)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "timeout: $what"
        sleep 0.2
    done
}
is() { [ "$(property "$1")" = "$2" ]; }
is_not() { [ "$(property "$1")" != "$2" ] && [ "$(property MainPID)" -gt 1 ]; }
answers() { ctr console status --nodes 127.0.0.1 --json; }

make_base() {
    [ -e "$base.ready" ] && return
    rm -rf "$base"
    mkdir -p "$base"
    local include=systemd,systemd-sysv,dbus,procps,iproute2
    debootstrap --variant=minbase --include=$include bookworm "$base" >"$base.log" 2>&1 || return 1
    if [ "$arch" = arm64 ]; then
        chroot "$base" dpkg --add-architecture arm64
        chroot "$base" apt-get update -q >>"$base.log" 2>&1 || return 1
        chroot "$base" apt-get install -q -y libc6:arm64 libgcc-s1:arm64 >>"$base.log" 2>&1 || return 1
    fi
    touch "$base.ready"
}

# arm64 programs run in an amd64 system under qemu; the unit's system call filters are for native code.
prepare_arm64() {
    if ! mountpoint -q $binfmt; then mount -t binfmt_misc none $binfmt && mounted=yes; fi
    if [ ! -e $binfmt/qemu-aarch64 ]; then
        cat /usr/lib/binfmt.d/qemu-aarch64.conf >$binfmt/register
        registered=yes
    fi
    mkdir -p "$work/etc/systemd/system/brambled.service.d"
    printf '[Service]\nMemoryDenyWriteExecute=no\nSystemCallFilter=\nEnvironment=QEMU_CPU=cortex-a72\n' \
        >"$work/etc/systemd/system/brambled.service.d/qemu.conf"
}

slow=1
[ "$arch" = amd64 ] || slow=4
step "base system"
mkdir -p target/boot
make_base || impossible "no base system; see $base.log"
rm -rf "$work"
cp -a --reflink=auto "$base" "$work"
cp "$debs"/bramble-*_"$arch".deb "$work/opt/"
cp RUNBOOK.md "$work/opt/"
[ "$arch" = amd64 ] || prepare_arm64

step "boot"
systemd-nspawn -q -D "$work" --private-network --register=no --keep-unit --capability=CAP_IPC_LOCK --boot \
    --console=read-only </dev/null >"target/boot/$arch.log" 2>&1 &
nspawn=$!
init=
for _ in $(seq 100); do
    init=$(pgrep -P $nspawn -x systemd || true)
    [ -n "$init" ] && break
    sleep 0.2
done
[ -n "$init" ] || impossible "the container does not boot; see target/boot/$arch.log"
booted() { ctr systemctl is-system-running | grep -E "running|degraded" >/dev/null; }
within 60 "the system is up" booted

step "install"
ctr sh -c 'apt-get install -y /opt/bramble-*.deb' >"target/boot/$arch.install.log" 2>&1 || fail "apt-get install"
within 15 "it is active" is ActiveState active
[ "$(ctr systemctl is-enabled brambled)" = enabled ] || fail "brambled is not enabled"
[ "$(ctr systemctl is-enabled bramble-governor || true)" = disabled ] || fail "the governor's unit is missing, or not disabled"
# A container has no frequency scaling: the unit does nothing, and does not fail.
ctr systemctl start bramble-governor || fail "the governor's unit fails on a machine without frequency scaling"
is NRestarts 0 || fail "it restarted unexpectedly"
is User bramble || fail "it does not run as bramble"
within 5 "a status text" is_not StatusText ""
[ "$(ctr stat -c '%a %U:%G' /etc/bramble/bramble.toml)" = "640 root:bramble" ] || fail "others can read the settings"
[ "$(ctr cat /run/bramble/brambled.pid)" = "$(property MainPID)" ] || fail "the PID file is wrong"
within 15 "port 9999 answers" answers
ctr console status --nodes 127.0.0.1

step "check"
code=0
ctr brambled check >"target/boot/$arch.check.log" 2>&1 || code=$?
[[ $code =~ ^(0|6|7)$ ]] || fail "brambled check ends with $code"
ctr console doctor --nodes 127.0.0.1 >>"target/boot/$arch.check.log" 2>&1 || [[ $? =~ ^(6|7)$ ]] || fail "console doctor"

step "bench as a child of the unit"
ctr console bench node --nodes 127.0.0.1 --model bard-q8_0.gguf --read-mib 16 --repeats 1 || fail "console bench node"

step "generate with the demo model"
ctr console generate --nodes 127.0.0.1 --model bard-q8_0.gguf --prompt ROMEO: --max-tokens 8 --temperature 0
within 5 "the status text names the shard" sh -c "$(declare -f property ctr); init=$init; property StatusText | grep bard >/dev/null"

step "kill -9 -> back"
pid=$(property MainPID)
[ "$pid" -gt 1 ] || fail "no process to kill"
ctr kill -9 "$pid"
within 5 "it is back" is NRestarts 1
within 15 "port 9999 answers" answers

step "hang -> watchdog"
pid=$(property MainPID)
[ "$pid" -gt 1 ] || fail "no process to stop"
ctr kill -STOP "$pid"
within 30 "the watchdog restarts it" is NRestarts 2
ctr journalctl -u brambled --no-pager -o cat | grep -i watchdog >/dev/null || fail "the journal does not show the reason"
within 15 "port 9999 answers" answers
# A node that still brings its topology up is not restarted.
within 60 "it serves again" sh -c "$(declare -f property ctr); init=$init; property StatusText | grep ready >/dev/null"

step "console restart"
pid=$(property MainPID)
ctr sh -c 'echo "log_dir = \"/var/log/bramble\"" >>/etc/bramble/bramble.toml'
ctr console restart --nodes 127.0.0.1 --yes || fail "console restart"
is_not MainPID "$pid" || fail "it is the same process"
is ActiveState active || fail "it is not active"
ctr sh -c 'cat /var/log/bramble/* | grep listen >/dev/null' || fail "it writes no log files"
ctr nsenter -t "$(property MainPID)" -m test -w /mnt || fail "it cannot use disks below /mnt"

step "reload"
pid=$(property MainPID)
ctr sh -c 'echo "drain_ms = 15000" >>/etc/bramble/bramble.toml'
ctr systemctl reload brambled || fail "reload"
said() { ctr journalctl -u brambled --no-pager -o cat | grep "$1" >/dev/null; }
within 5 "the settings are reloaded" said "settings reloaded"
ctr sh -c 'cp /etc/bramble/bramble.toml /tmp/good && sed -i "s/^drain_ms.*/drain_ms = long/" /etc/bramble/bramble.toml'
ctr systemctl reload brambled || fail "reload"
within 5 "bad settings are refused" said "cannot reload the settings"
ctr sh -c 'cat /tmp/good >/etc/bramble/bramble.toml'
is MainPID "$pid" || fail "a reload restarted it"
is ActiveState active || fail "it is not active"

step "commands of the RUNBOOK for a node"
awk '/^```sh on-node$/ {on = 1; next} /^```/ {on = 0} on' RUNBOOK.md >"$work/opt/node.sh"
[ -s "$work/opt/node.sh" ] || fail "the RUNBOOK has no commands for a node"
while IFS= read -r line; do
    printf '   %s\n' "$line"
    ctr sh -c "cd /opt && $line" >"target/boot/$arch.command.log" 2>&1 </dev/null || {
        cat "target/boot/$arch.command.log" >&2
        fail "the command of the RUNBOOK fails: $line"
    }
done <"$work/opt/node.sh"
within 15 "port 9999 answers" answers

# Under qemu the unit has fewer filters, so the score is only checked on amd64.
if [ "$arch" = amd64 ]; then
    step "security"
    score=$(ctr systemd-analyze security brambled --no-pager | awk '/Overall exposure level/ {print $(NF - 2)}')
    echo "   exposure $score"
    awk -v score="$score" 'BEGIN {exit !(score != "" && score <= 2.5)}' || fail "exposure $score is above 2.5"
fi

step "upgrade leaves the running daemon and the settings alone"
pid=$(property MainPID)
ctr sh -c 'apt-get install -y --reinstall /opt/bramble-*.deb' >"target/boot/$arch.upgrade.log" 2>&1 || fail "reinstall"
is MainPID "$pid" || fail "the upgrade restarted it"
ctr grep -q "drain_ms = 15000" /etc/bramble/bramble.toml || fail "the upgrade lost a setting"

step "a crash loop ends"
ctr systemctl reset-failed brambled
ctr sh -c 'echo nonsense >/etc/bramble/bramble.toml && systemctl restart brambled || true'
within 60 "it gives up" is ActiveState failed
said "nonsense\|bramble.toml is invalid" || fail "the journal does not show the reason"

step "purge"
ctr apt-get purge -y bramble-daemon bramble-console >"target/boot/$arch.purge.log" 2>&1 || fail "purge"
for path in /etc/bramble /etc/needrestart/conf.d/bramble.conf /var/lib/bramble /var/log/bramble /run/bramble /usr/share/bramble \
    /usr/bin/brambled /usr/bin/console /usr/lib/systemd/system/brambled.service \
    /usr/lib/systemd/system/bramble-governor.service; do
    ! ctr test -e $path || fail "purge left $path"
done
! ctr pgrep -x brambled || fail "purge left a process"

ctr systemctl poweroff || true
for _ in $(seq 100); do kill -0 $nspawn 2>/dev/null || break; sleep 0.2; done
nspawn=
echo "boot-test $arch: passed in $SECONDS s"
