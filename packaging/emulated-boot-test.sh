#!/usr/bin/env bash
# Boots a Debian 13 for arm64 under a fully emulated kernel and machine, as a Raspberry Pi boots for the first time:
# packaging/emulated-boot-test.sh [FOLDER with the .deb, default target/debian]. Root on Debian for amd64; takes 15 minutes
# or more, most of them once for the base system. Exit code 77: no base system can be made here.
#
# The user-data of packaging/first-boot/make lies on a FAT boot partition, configured as in Raspberry Pi OS 13; cloud-init sets
# host name, user and key, adds the repository, which this script serves, and installs the packages. Then this script logs
# in with the key and asserts that the unit runs with its system call filter, serves the demo model, and comes back after
# kill -9 and a reboot. BRAMBLE_KERNEL=linux-image-arm64-16k: pages of 16 KiB, as on a Pi 5. BRAMBLE_CPU=cortex-a72: a Pi 4.
set -euo pipefail
cd "$(dirname "$0")/.."
debs=$(realpath "${1:-target/debian}")
kernel=${BRAMBLE_KERNEL:-linux-image-arm64}
cpu=${BRAMBLE_CPU:-cortex-a76}
cache=$PWD/target/boot/emulated
base=$cache/root
work=$PWD/target/boot/emulated-$$
mirror=${BRAMBLE_MIRROR:-http://deb.debian.org/debian}
qemu= server=

finish() {
    local code=$?
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    GNUPGHOME=$work/key gpgconf --kill all 2>/dev/null || true
    if [ $code -ne 0 ] && [ -e "$work/console.log" ]; then
        cp "$work/console.log" "$cache/console.log"
        echo "emulated-boot-test: FAILED with $code; the machine's console is in $cache/console.log" >&2
    fi
    rm -rf "$work"
}
trap finish EXIT
fail() { echo "emulated-boot-test: $*" >&2; exit 1; }
impossible() { echo "emulated-boot-test: $*" >&2; exit 77; }
step() { printf -- '-- %s (%d s)\n' "$1" $SECONDS; }
[ "$(id -u)" -eq 0 ] || impossible "needs root"
for program in qemu-system-aarch64 debootstrap mkfs.vfat mcopy cpio depmod ssh-keygen ssh python3 xz mke2fs gpg; do
    command -v $program >/dev/null || impossible "needs $program: apt-get install qemu-system-arm debootstrap qemu-user-static dosfstools mtools cpio kmod openssh-client xz-utils e2fsprogs gpg dpkg-dev"
done
mkdir -p "$cache" "$work"

# apt for arm64 and Debian 13, whatever this machine runs.
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
    local version init=$to/init module
    version=$(ls "$to/files/usr/lib/modules")
    depmod -b "$to/files" "$version"
    # A minimal initial RAM disk: the modules of the disk and its file system in order of their dependencies.
    mkdir -p "$init/modules" "$init/bin" "$init/root" "$init/proc" "$init/sys" "$init/dev"
    cp "$to"/files/usr/bin/busybox "$init/bin/busybox"
    local order=()
    for module in virtio_pci virtio_mmio virtio_blk ext4; do
        while read -r module; do
            [[ " ${order[*]:-} " == *" $module "* ]] || order+=("$module")
        done < <(modprobe -d "$to/files" -S "$version" --show-depends $module 2>/dev/null | sed -n 's/^insmod //p')
    done
    for module in "${order[@]}"; do
        xz -dc "$module" >"$init/modules/$(basename "$module" .xz)"
        echo "insmod /modules/$(basename "$module" .xz)"
    done >"$to/insmods"
    {
        printf '#!/bin/busybox sh\nbusybox mount -t proc proc /proc; busybox mount -t sysfs sys /sys; busybox mount -t devtmpfs dev /dev\n'
        sed 's/^/busybox /' "$to/insmods"
        printf 'while [ ! -b /dev/vda ]; do busybox sleep 0.1; done\nbusybox mount -t ext4 /dev/vda /root || exec busybox sh\nexec busybox switch_root /root /sbin/init\n'
    } >"$init/init"
    chmod +x "$init/init"
    (cd "$init" && find . | cpio -o -H newc --quiet | gzip -1) >"$to/initrd.new"
    mv "$to/initrd.new" "$to/initrd"
}

make_base() {
    [ -e "$cache/root.ready" ] && return
    local include=systemd,systemd-sysv,systemd-resolved,dbus,udev,kmod,iproute2,procps,sudo,curl,ca-certificates,gpgv,openssh-server,cloud-init,netplan.io,netbase
    rm -rf "$base"
    debootstrap --arch=arm64 --foreign --variant=minbase --include=$include trixie "$base" "$mirror" >"$cache/log" 2>&1 || return 1
    # The second stage runs arm64 programs; the kernel starts them through qemu.
    local binfmt=/proc/sys/fs/binfmt_misc
    mountpoint -q $binfmt || mount -t binfmt_misc none $binfmt || return 1
    [ -e $binfmt/qemu-aarch64 ] || cat /usr/lib/binfmt.d/qemu-aarch64.conf >$binfmt/register || return 1
    chroot "$base" /debootstrap/debootstrap --second-stage >>"$cache/log" 2>&1 || return 1
    touch "$cache/root.ready"
}

step "base system and kernel"
make_kernel || impossible "no kernel; see $cache/$kernel/log"
make_base || impossible "no base system; see $cache/log"

step "repository, card"
export BRAMBLE_APT_KEY=$work/key
packaging/apt-repository.sh "$work/repository" "$debs"/bramble-*_arm64.deb >/dev/null 2>&1
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
http=$(port)
python3 -m http.server --bind 127.0.0.1 --directory "$work/repository" "$http" >"$work/http.log" 2>&1 &
server=$!
ssh-keygen -q -t ed25519 -N '' -C operator@laptop -f "$work/ssh"
mkdir -p "$work/bootfs"
# 10.0.2.2 is this machine, as the emulated one sees it.
packaging/first-boot/make --name pi1 --ssh-key "$work/ssh.pub" --repository "http://10.0.2.2:$http" --trust "$work/repository/bramble.gpg" >"$work/bootfs/user-data"
# The other two files are as on a card of Raspberry Pi OS; there, NetworkManager configures Ethernet.
printf 'dsmode: local\ninstance_id: rpios-image\n' >"$work/bootfs/meta-data"
printf 'network:\n  version: 2\n  ethernets:\n    all:\n      match: {name: "e*"}\n      dhcp4: true\n' >"$work/bootfs/network-config"
truncate -s 64M "$work/boot.img"
mkfs.vfat -n bootfs "$work/boot.img" >/dev/null
mcopy -i "$work/boot.img" "$work"/bootfs/* ::
root=$work/root
cp -a --reflink=auto "$base" "$root"
rm -rf "$root/usr/lib/modules"
cp -a --reflink=auto "$cache/$kernel/files/usr/lib/modules" "$root/usr/lib/modules"
printf '/dev/vda / ext4 defaults 0 1\nLABEL=bootfs /boot/firmware vfat defaults 0 2\n' >"$root/etc/fstab"
mkdir -p "$root/boot/firmware"
printf 'datasource_list: [ NoCloud, None ]\ndatasource:\n  NoCloud:\n    seedfrom: file:///boot/firmware\n' >"$root/etc/cloud/cloud.cfg.d/99_raspberry-pi.cfg"
# The test needs no other packages; the lists of all of Debian take minutes here.
rm -f "$root/etc/apt/sources.list" "$root"/etc/apt/sources.list.d/*
printf 'apt_preserve_sources_list: true\napt: {preserve_sources_list: true}\n' >"$root/etc/cloud/cloud.cfg.d/90_sources.cfg"
# Debian starts sshd by itself, Raspberry Pi OS does not.
rm -f "$root/etc/systemd/system/multi-user.target.wants/ssh.service"
: >"$root/etc/machine-id"
mke2fs -q -t ext4 -d "$root" "$work/root.img" 3G
rm -rf "$root"

boot() {
    # An emulated machine executes the clock's interrupts late: its watchdogs and deadlines stay as they are on a node.
    qemu-system-aarch64 -machine virt,gic-version=3 -cpu "$cpu" -accel tcg,thread=multi -smp 2 -m 2048 -nographic -no-reboot \
        -kernel "$cache/$kernel/vmlinuz" -initrd "$cache/$kernel/initrd" -append "console=ttyAMA0 root=/dev/vda rw quiet systemd.show_status=yes" \
        -drive "file=$work/root.img,format=raw,if=none,id=root,cache=unsafe" -device virtio-blk-pci,drive=root \
        -drive "file=$work/boot.img,format=raw,if=none,id=boot" -device virtio-blk-pci,drive=boot \
        -netdev "user,id=net,hostfwd=tcp:127.0.0.1:$login-:22" -device virtio-net-pci,netdev=net,romfile= -device virtio-rng-pci \
        </dev/null >>"$work/console.log" 2>&1 &
    qemu=$!
}
pi() { ssh -q -i "$work/ssh" -p "$login" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 -o ServerAliveInterval=30 pi@127.0.0.1 "$@"; }
within() { # within SECONDS WHAT COMMAND..
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        kill -0 "$qemu" 2>/dev/null || fail "the machine ended: $what"
        [ $SECONDS -lt $end ] || fail "timeout: $what"
        sleep 3
    done
}
login=$(port)
boot
step "first boot"
within 1500 "ssh with the key" pi true
step "logged in"
within 1500 "cloud-init has ended" pi "cloud-init status | grep -E 'status: (done|error)'"
[ "$(pi hostname)" = pi1 ] || fail "the host name is $(pi hostname)"
pi "sudo test -x /usr/local/sbin/bramble-first-boot && dpkg-query -W bramble-daemon bramble-console" || { pi "sudo tail -n 30 /var/log/cloud-init-output.log" >&2; fail "the packages are not installed"; }
pi "uname -a; getconf PAGESIZE; lscpu | sed -n 's/^Model name: *//p'; systemctl --version | head -n 1; cloud-init --version"
step "the unit"
check() {
    within 300 "brambled is active" pi systemctl is-active brambled
    pi 'test -n "$(systemctl show brambled -p SystemCallFilter --value)"' || fail "the unit has no system call filter"
    # 2: a filter is active.
    [ "$(pi 'sudo sed -n "s/^Seccomp:\t//p" /proc/$(systemctl show brambled -p MainPID --value)/status')" = 2 ] || fail "no system call filter is active"
    within 120 "port 9999 answers" pi console status --nodes 127.0.0.1
    pi console status --nodes 127.0.0.1
}
check
pi 'code=0; sudo brambled check || code=$?; [ $code -eq 0 ] || [ $code -eq 6 ] || [ $code -eq 7 ]' || fail "brambled check"
step "generate with the demo model"
pi "console generate --nodes 127.0.0.1 --model bard-q8_0.gguf --prompt ROMEO: --max-tokens 16 --temperature 0" || fail "no text"
pi "curl -sf http://127.0.0.1:9980/v1/completions -d '{\"prompt\":\"ROMEO:\",\"max_tokens\":8,\"temperature\":0}' -H 'Content-Type: application/json'" | head -c 600 || fail "no text over HTTP"
echo
step "kill -9"
pi 'sudo kill -9 $(systemctl show brambled -p MainPID --value)'
within 60 "it is restarted" pi 'test $(systemctl show brambled -p NRestarts --value) -eq 1'
check
within 120 "the topology is back" pi "curl -sf http://127.0.0.1:9980/health"
step "reboot"
pi sudo systemctl reboot || true
for _ in $(seq 300); do kill -0 "$qemu" 2>/dev/null || break; sleep 1; done
! kill -0 "$qemu" 2>/dev/null || fail "the machine does not reboot"
boot
within 900 "ssh after a reboot" pi true
check
within 180 "the topology is back after a reboot" pi "curl -sf http://127.0.0.1:9980/health"
pi "systemctl is-system-running; systemctl --failed --no-legend; journalctl -u brambled -p warning -b --no-pager -o cat | tail -n 5" || true
echo "emulated-boot-test: passed in $SECONDS s"
