#!/usr/bin/env bash
# Builds bramble-daemon and bramble-console for amd64 and arm64: packaging/build-deb.sh [FOLDER], default target/debian.
# As root it installs missing dependencies; otherwise it lists them. Needs Rust (cargo) and Debian 12 or later on amd64.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/debian}")
tools=$PWD/target/tools
arm=aarch64-unknown-linux-gnu
# The packages contain the time of the commit, not of the build. Only cargo-deb may see it: build scripts of C code run again
# when SOURCE_DATE_EPOCH changes, and with them the whole workspace is compiled again.
committed=$(git log -1 --format=%ct 2>/dev/null || date +%s)
deb() { SOURCE_DATE_EPOCH=$committed "$tools/bin/cargo-deb" "$@" --no-build --strip --quiet --output "$out/"; }

need() { # need PACKAGE..: Debian packages
    local missing=() package
    for package; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ]; then
        echo "build-deb: missing packages; as root: dpkg --add-architecture arm64; apt-get install ${missing[*]}" >&2
        exit 1
    fi
    dpkg --add-architecture arm64
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

need dpkg-dev gcc libc6-dev rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross
[ -x "$tools/bin/cargo-deb" ] || cargo install cargo-deb --version 3.8.0 --locked --root "$tools"

cargo run --release --locked -p bramble-tests --bin manual -- target/packaging
cargo build --release --locked -p bramble-daemon -p bramble-console
# Debian's compiler has the standard library for arm64. It uses its own target folder, because two compilers would invalidate each
# other's builds.
RUSTC=/usr/bin/rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    cargo build --release --locked -p bramble-daemon -p bramble-console --target $arm --target-dir target/cross

rm -rf "$out"
mkdir -p "$out"
for package in bramble-daemon bramble-console; do
    deb -p $package
    CARGO_TARGET_DIR=target/cross deb -p $package --target $arm
done
ls -l "$out"
