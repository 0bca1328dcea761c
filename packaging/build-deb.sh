#!/usr/bin/env bash
# Builds bramble-daemon and bramble-console for amd64 and arm64: packaging/build-deb.sh [FOLDER], default target/debian.
# As root it installs missing dependencies; otherwise it lists them. Needs Rust (cargo), python3 and Debian 12 or later on
# amd64. The bytes should depend only on the commit and the compilers: reproducible-test.sh compares two builds. The programs
# are built with the profile `dist`, which makes them small. BRAMBLE_ARCHS="amd64" builds only for these. BRAMBLE_AS_BUILT=1
# packs the larger programs that other steps have built in target and target/cross, with the folder's name in some messages.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/debian}")
tools=$PWD/target/tools
archs=${BRAMBLE_ARCHS:-amd64 arm64}
profile=${BRAMBLE_AS_BUILT:+release} profile=${profile:-dist}
for arch in $archs; do
    [[ $arch =~ ^(amd64|arm64)$ ]] || { echo "build-deb: no packages for $arch: BRAMBLE_ARCHS is amd64, arm64 or both" >&2; exit 1; }
done
# The packages contain the time of the commit, not of the build. Only cargo-deb may see it: build scripts of C code run again
# when SOURCE_DATE_EPOCH changes, and with them the whole workspace is compiled again.
committed=$(git log -1 --format=%ct 2>/dev/null || date +%s)
deb() { SOURCE_DATE_EPOCH=$committed "$tools/bin/cargo-deb" "$@" --profile $profile --no-build --strip --quiet --output "$out/"; }
triple() { case $1 in amd64) echo x86_64-unknown-linux-gnu ;; arm64) echo aarch64-unknown-linux-gnu ;; esac; }
need() { # need PACKAGE..: Debian packages
    local missing=() package
    for package; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ]; then
        echo "build-deb: missing packages; as root: dpkg --add-architecture arm64 && apt-get update && apt-get install ${missing[*]}" >&2
        exit 1
    fi
    dpkg --add-architecture arm64
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# Replaces the folders of this repository, of the crates' sources and of the standard library's sources (if they are
# installed) in the programs, so that two builds can have the same bytes.
hide_folders() {
    local rustc=${RUSTC:-rustc} crates=${CARGO_HOME:-$HOME/.cargo}/registry/src/ flags
    flags=$(printf -- '--remap-path-prefix=%s\x1f' "$PWD=/usr/src/bramble" "$crates=/usr/src/crates/" \
        "$($rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$($rustc -vV | sed -n 's/^commit-hash: //p')")
    export CARGO_ENCODED_RUSTFLAGS=${flags%$'\x1f'}
}
# Compiler and target folder of an architecture. Two compilers would invalidate each other's builds in one folder.
prepare() {
    case $1 in
        amd64) export CARGO_TARGET_DIR=$PWD/target ;;
        # Debian's compiler has the standard library for arm64.
        arm64) export CARGO_TARGET_DIR=$PWD/target/cross RUSTC=/usr/bin/rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc ;;
    esac
    [ -z "${BRAMBLE_AS_BUILT:-}" ] || return 0
    export CARGO_TARGET_DIR=$PWD/target/package-$1
    hide_folders
}

need dpkg-dev gcc libc6-dev
[[ $archs != *arm64* ]] || need rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross
command -v python3 >/dev/null || { echo "build-deb: needs python3" >&2; exit 1; }
[ -x "$tools/bin/cargo-deb" ] || cargo install cargo-deb --version 3.8.0 --locked --root "$tools"

# Man pages of commands that no longer exist must not be packed.
rm -rf "$out" target/packaging
mkdir -p "$out"
(prepare amd64 && cargo run --release --locked -p bramble-tests --bin manual -- target/packaging)
for arch in $archs; do
    (
        prepare "$arch"
        target=() built=$CARGO_TARGET_DIR/$profile
        if [ "$arch" != amd64 ]; then
            target=(--target "$(triple "$arch")") built=$CARGO_TARGET_DIR/$(triple "$arch")/$profile
        fi
        cargo build --profile $profile --locked -p bramble-daemon -p bramble-console "${target[@]}"
        for package in bramble-daemon bramble-console; do
            SOURCE_DATE_EPOCH=$committed packaging/sbom.py $package "$(triple "$arch")" "$built/$package.cdx.json"
            deb -p $package "${target[@]}"
        done
    )
done
ls -l "$out"
