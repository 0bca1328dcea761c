#!/usr/bin/env bash
# Builds statically linked programs, brambled and console: packaging/build-static.sh [amd64|arm64], default amd64, into
# target/static. For Linux without glibc (Alpine) or with a glibc older than 2.34; see docs/decisions/0033. Prints SKIPPED and
# the reason if a compiler or musl's standard library is missing. Tests the programs: two nodes on loopback answer a prompt.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=${1:-amd64}
skip() { echo "SKIPPED static $arch: $*"; exit 0; }
fail() { echo "build-static: $*" >&2; exit 1; }
case $arch in
    amd64) target=x86_64-unknown-linux-musl compiler=musl-gcc packages=musl-tools run=() ;;
    # musl's headers and start files come with rustup's target; the only C code, ring's, needs a compiler and no library.
    arm64) target=aarch64-unknown-linux-musl compiler=aarch64-linux-gnu-gcc packages=gcc-aarch64-linux-gnu run=(qemu-aarch64 -cpu cortex-a76) ;;
    *) fail "usage: build-static.sh [amd64|arm64]" ;;
esac
command -v $compiler >/dev/null || skip "needs $compiler: apt-get install $packages"
command -v rustup >/dev/null || skip "needs rustup, which provides musl's standard library: https://rustup.rs"
rustup target add $target >/dev/null 2>&1 || skip "rustup cannot get the standard library for $target"
name=${target//-/_}
# The linker comes with rustup, so the programs contain no start file or library of this system.
export "CC_$name=$compiler" "CARGO_TARGET_${name^^}_LINKER=rust-lld" "CFLAGS_$name=-U_FORTIFY_SOURCE"
cargo build --release --locked --target $target --target-dir target/static-build -p bramble-daemon -p bramble-console
mkdir -p target/static
for program in brambled console; do
    built=target/static-build/$target/release/$program
    ! readelf -lW "$built" | grep -q INTERP || fail "$program needs a dynamic loader"
    ! readelf -dW "$built" | grep NEEDED || fail "$program needs a shared library"
    "$(command -v "${compiler%-gcc}-objcopy" || echo objcopy)" --strip-all "$built" "target/static/$program-$arch"
    ls -l "target/static/$program-$arch"
done
[ "$arch" = amd64 ] || command -v qemu-aarch64 >/dev/null || { echo "SKIPPED the test of $arch: needs qemu-user"; exit 0; }

state=$(mktemp -d)
daemons=()
trap 'for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done; rm -rf "$state"' EXIT
nodes=
for host in 127.91.7.1 127.91.7.2; do
    "${run[@]}" "target/static/brambled-$arch" --listen $host:9999 --name "static${host##*.}" --models packaging/demo --state "$state/$host" >"$state/log-$host" 2>&1 &
    daemons+=($!)
    nodes=${nodes:+$nodes,}$host
done
for _ in $(seq 100); do
    "${run[@]}" "target/static/console-$arch" status --nodes $nodes >/dev/null 2>&1 && break
    sleep 0.5
done
timeout 300 "${run[@]}" "target/static/console-$arch" generate --yes --nodes $nodes --model bard-q8_0.gguf --prompt ROMEO: --max-tokens 16 --temperature 0 || { cat "$state"/log-* >&2; fail "the nodes do not answer a prompt; their logs are above"; }
echo "build-static $arch: passed"
