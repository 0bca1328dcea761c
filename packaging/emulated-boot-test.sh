#!/usr/bin/env bash
# Boots a Debian 13 for arm64 under a fully emulated kernel and machine, and installs the packages there:
# packaging/emulated-boot-test.sh [FOLDER with the .deb, default target/debian]. Root on Debian for amd64. Exit code 77: no base
# system can be made here. In contrast to the containers of boot-test.sh, the unit's system call filter and its ban of
# writable code apply to arm64 programs, with the numbers of arm64's system calls.
#
# BRAMBLE_KERNEL=linux-image-arm64-16k: pages of 16 KiB, as on a Pi 5. BRAMBLE_CPU=cortex-a72: a Pi 4 [default: cortex-a76, a Pi 5].
# BRAMBLE_PATIENCE: longest time for the machine, in seconds [default: 2400]. BRAMBLE_MIRROR: address of a Debian mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
debs=$(realpath "${1:-target/debian}")
kernel=${BRAMBLE_KERNEL:-linux-image-arm64}
cpu=${BRAMBLE_CPU:-cortex-a76}
cache=$PWD/target/boot/emulated
work=$PWD/target/boot/emulated-$$
mirror=${BRAMBLE_MIRROR:-http://deb.debian.org/debian}
patience=${BRAMBLE_PATIENCE:-2400}
qemu=

finish() {
    local code=$?
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    [ ! -e "$work/console.log" ] || cp "$work/console.log" "$cache/console.log"
    rm -rf "$work"
    [ $code -eq 0 ] || [ $code -eq 77 ] || echo "emulated-boot-test: FAILED; the machine's console is in $cache/console.log" >&2
}
trap finish EXIT
fail() { echo "emulated-boot-test: $*" >&2; exit 1; }
impossible() { echo "emulated-boot-test: $*" >&2; exit 77; }
step() { printf -- '-- %s (%d s)\n' "$1" $SECONDS; }
[ "$(id -u)" -eq 0 ] || impossible "needs root"
for program in qemu-system-aarch64 debootstrap cpio depmod xz mke2fs; do
    command -v $program >/dev/null || impossible "needs $program: apt-get install qemu-system-arm debootstrap cpio kmod xz-utils e2fsprogs"
done
mkdir -p "$cache" "$work"

# apt for arm64 and Debian 13, independent of this machine's release and architecture.
foreign() {
    local apt=$cache/apt tool=$1
    shift
    mkdir -p "$apt"/{etc/apt/{apt.conf.d,preferences.d},lists/partial,archives/partial}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$apt/sources.list"
    : >"$apt/status"
    "$tool" -q -o Dir="$apt" -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt" -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=- \
        -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root -o Debug::NoLocking=true -o Acquire::Languages=none "$@"
}

make_kernel() {
    local to=$cache/$kernel image
    [ -e "$to/initrd" ] && return
    rm -rf "$to"
    mkdir -p "$to/files"
    foreign apt-get update >"$to/log" 2>&1 || return 1
    image=$(foreign apt-cache depends "$kernel" | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$image" ] || return 1
    (cd "$to" && foreign apt-get download "$image" busybox-static >>log 2>&1) || return 1
    for deb in "$to"/*.deb; do dpkg-deb -x "$deb" "$to/files"; done
    mv "$to"/files/boot/vmlinuz-* "$to/vmlinuz"
    ln -s usr/lib "$to/files/lib"
    local version init=$to/init name module
    version=$(ls "$to/files/usr/lib/modules")
    depmod -b "$to/files" "$version"
    # A minimal initial RAM disk: the modules of the disk and its file system, each after its dependencies.
    mkdir -p "$init/modules" "$init/bin" "$init/sysroot" "$init/proc" "$init/sys" "$init/dev"
    cp "$to"/files/usr/bin/busybox "$init/bin/busybox"
    local order=()
    for name in virtio_pci virtio_blk ext4; do
        while read -r module; do
            [[ " ${order[*]:-} " == *" $module "* ]] || order+=("$module")
        done < <(modprobe -d "$to/files" -S "$version" --show-depends $name 2>/dev/null | sed -n 's/^insmod //p')
    done
    for module in "${order[@]}"; do
        xz -dc "$module" >"$init/modules/$(basename "$module" .xz)"
        echo "insmod /modules/$(basename "$module" .xz)"
    done >"$to/insmods"
    {
        printf '#!/bin/busybox sh\nbusybox mount -t proc proc /proc; busybox mount -t sysfs sys /sys; busybox mount -t devtmpfs dev /dev\n'
        sed 's/^/busybox /' "$to/insmods"
        printf 'while [ ! -b /dev/vda ]; do busybox sleep 0.1; done\nbusybox mount -t ext4 /dev/vda /sysroot || exec busybox sh\nexec busybox switch_root /sysroot /sbin/init\n'
    } >"$init/init"
    chmod +x "$init/init"
    (cd "$init" && find . | cpio -o -H newc --quiet | gzip -1) >"$to/initrd.new" || return 1
    mv "$to/initrd.new" "$to/initrd"
}

# Makes a base system without running an arm64 program: unpacks the packages and marks them as installed. Debian's own
# scripts would take half an hour under emulation, and no part of the test needs their results.
make_base() {
    [ -e "$cache/machine.ready" ] && return
    local down=$cache/downloads machine=$cache/machine deb name
    rm -rf "$machine"
    debootstrap --download-only --arch=arm64 --variant=minbase --include=systemd,systemd-sysv,dbus,udev,kmod,procps,iproute2 trixie "$down" "$mirror" >"$cache/log" 2>&1 || return 1
    mkdir -p "$machine"/usr/{bin,sbin,lib} "$machine"/{proc,sys,dev,run,tmp,root,etc,opt} "$machine"/var/lib/dpkg/{info,updates,triggers}
    for name in bin sbin lib; do ln -s usr/$name "$machine/$name"; done
    : >"$machine/var/lib/dpkg/status"
    for deb in "$down"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -C "$machine" --keep-directory-symlink -x
        dpkg-deb -f "$deb" | sed '/^Package:/a Status: install ok installed' >>"$machine/var/lib/dpkg/status"
        echo >>"$machine/var/lib/dpkg/status"
    done
    # Files that the scripts of base-passwd and base-files would copy.
    cp "$machine/usr/share/base-passwd/passwd.master" "$machine/etc/passwd"
    cp "$machine/usr/share/base-passwd/group.master" "$machine/etc/group"
    sed 's/^\([^:]*\):.*/\1:*:20000:0:99999:7:::/' "$machine/etc/passwd" >"$machine/etc/shadow"
    cp "$machine/usr/share/base-files/nsswitch.conf" "$machine/etc/"
    touch "$cache/machine.ready"
}

step "kernel and base system"
make_kernel || impossible "no kernel; see $cache/$kernel/log"
make_base || impossible "no base system; see $cache/log"

step "disk"
machine=$work/machine
cp -a --reflink=auto "$cache/machine" "$machine"
cp -a --reflink=auto "$cache/$kernel/files/usr/lib/modules" "$machine/usr/lib/"
cp "$debs"/bramble-*_arm64.deb "$machine/opt/"
echo '/dev/vda / ext4 defaults 0 1' >"$machine/etc/fstab"
echo pi1 >"$machine/etc/hostname"
printf '127.0.0.1 localhost pi1\n' >"$machine/etc/hosts"
: >"$machine/etc/machine-id"
cat >"$machine/opt/smoke" <<'SMOKE'
#!/bin/bash
# Runs in the emulated machine.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C DEBIAN_FRONTEND=noninteractive
trap 'code=$?; [ $code -eq 0 ] || journalctl -u brambled --no-pager -o cat | tail -n 30; echo "SMOKE ENDS WITH $code"; sync; systemctl poweroff --force --force' EXIT
property() { systemctl show brambled -p "$1" --value; }
within() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "timeout: $what"; exit 1; }
        sleep 1
    done
}
is_up() { [ "$(property ActiveState)" = active ] && console status --nodes 127.0.0.1; }
serves() { [[ $(console status --nodes 127.0.0.1 --json) == *'"state":"ready"'* ]]; }
uname -srm; echo "pages of $(getconf PAGESIZE) bytes, $(systemctl --version | head -n 1)"; head -n 12 /proc/cpuinfo | grep -E "CPU part|Features"
echo "-- install"
dpkg -i /opt/bramble-*.deb
within 300 "brambled is active" is_up
echo "-- the unit"
pid=$(property MainPID)
[ "$(property User)" = bramble ]
[ -n "$(property SystemCallFilter)" ] && [ "$(property MemoryDenyWriteExecute)" = yes ]
# 2: a filter applies.
grep -x "Seccomp:.2" /proc/$pid/status
grep -E "NoNewPrivs|CapEff|Seccomp_filters" /proc/$pid/status
systemd-analyze security --no-pager brambled | tail -n 1 || true
echo "-- check"
code=0; brambled check || code=$?
[[ $code =~ ^(0|6|7)$ ]]
echo "-- bench as a child of the unit"
console bench node --nodes 127.0.0.1 --model bard-q8_0.gguf --read-mib 16 --repeats 1
echo "-- generate with the demo model"
console generate --nodes 127.0.0.1 --model bard-q8_0.gguf --prompt ROMEO: --max-tokens 16 --temperature 0
console status --nodes 127.0.0.1
echo "-- kill -9"
kill -9 "$pid"
within 120 "it is back and serves again" serves
[ "$(property NRestarts)" = 1 ]
echo "-- restart by the console"
console restart --nodes 127.0.0.1 --yes
within 120 "it serves again" serves
journalctl -u brambled -p warning --no-pager -o cat | tail -n 8
SMOKE
chmod +x "$machine/opt/smoke"
cat >"$machine/etc/systemd/system/smoke.service" <<'UNIT'
[Unit]
After=basic.target dbus.service
[Service]
Type=oneshot
ExecStart=/opt/smoke
StandardOutput=journal+console
StandardError=journal+console
TimeoutStartSec=infinity
UNIT
mkdir -p "$machine/etc/systemd/system/multi-user.target.wants"
ln -s ../smoke.service "$machine/etc/systemd/system/multi-user.target.wants/smoke.service"
# These units take minutes under emulation and do not affect the test.
for unit in ldconfig systemd-hwdb-update systemd-journal-catalog-update; do ln -sf /dev/null "$machine/etc/systemd/system/$unit.service"; done
mke2fs -q -t ext4 -d "$machine" "$work/machine.img" 2G
rm -rf "$machine"

: >"$work/console.log"
step "boot $kernel on a $cpu"
qemu-system-aarch64 -machine virt,gic-version=3 -cpu "$cpu" -accel tcg,thread=multi -smp 2 -m 2048 -nographic -no-reboot -nic none \
    -kernel "$cache/$kernel/vmlinuz" -initrd "$cache/$kernel/initrd" -append "console=ttyAMA0 root=/dev/vda rw quiet systemd.show_status=yes" \
    -drive "file=$work/machine.img,format=raw,if=none,id=disk,cache=unsafe" -device virtio-blk-pci,drive=disk -device virtio-rng-pci \
    </dev/null >"$work/console.log" 2>&1 &
qemu=$!
# Prints the test's lines from the machine's console, without those of the kernel and systemd.
tail -n +1 -f --pid=$qemu "$work/console.log" | sed -nu 's/\r$//; s/^.*smoke\[[0-9]*\]: //p' &
for _ in $(seq "$patience"); do kill -0 $qemu 2>/dev/null || break; sleep 1; done
kill -0 $qemu 2>/dev/null && fail "the machine still runs after $patience s: set BRAMBLE_PATIENCE to a longer time"
qemu=
sleep 1
grep -q "SMOKE ENDS WITH 0" "$work/console.log" || fail "the test in the machine failed"
echo "emulated-boot-test: passed in $SECONDS s"
