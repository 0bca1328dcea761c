#!/usr/bin/env bash
# Tests that two builds of the packages in two folders have the same bytes: packaging/reproducible-test.sh [amd64] [arm64]
# builds them here and in a clone of this commit below /tmp, and lists the differences. Two full builds.
# packaging/reproducible-test.sh --packing FOLDER only packs the programs of target/release again, in another folder, and
# compares them with the packages in FOLDER, which build-deb.sh has made here with BRAMBLE_AS_BUILT=1.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "reproducible-test: $*" >&2; exit 1; }
other=$(mktemp -d "${TMPDIR:-/tmp}/bramble-elsewhere-XXXXXX")
trap 'rm -rf "$other"' EXIT

# Lists the differences of two files, of archives those of their members.
differences() { # differences WHAT ONE OTHER
    local what=$1 one=$2 two=$3 work name
    ! cmp -s "$one" "$two" || return 0
    echo "  $what: $(stat -c %s "$one") and $(stat -c %s "$two") bytes, first difference: $(cmp "$one" "$two" 2>&1 | sed 's/.*differ: //')"
    work=$(mktemp -d "$other/differences-XXXXXX")
    mkdir "$work/one" "$work/two"
    case $one in
        *.deb)
            (cd "$work/one" && ar x "$one") && (cd "$work/two" && ar x "$two")
            [ "$(ar tv "$one")" = "$(ar tv "$two")" ] || diff <(ar tv "$one") <(ar tv "$two") | sed 's/^/    /'
            ;;
        *.tar.*)
            tar -C "$work/one" -xf "$one" && tar -C "$work/two" -xf "$two"
            diff <(tar tvf "$one") <(tar tvf "$two") | sed 's/^/    /' || true
            ;;
        *)
            if [ "$(head -c 4 "$one" | tail -c 3)" = ELF ]; then
                diff <(readelf -SnW "$one") <(readelf -SnW "$two") | head -n 20 | sed 's/^/    /' || true
                diff <(strings -n 8 "$one" | sort -u) <(strings -n 8 "$two" | sort -u) | head -n 20 | sed 's/^/    /' || true
            else
                diff "$one" "$two" | head -n 20 | sed 's/^/    /' || true
            fi
            return 1
            ;;
    esac
    while IFS= read -r name; do
        if [ -e "$work/two/$name" ]; then differences "$what/$name" "$work/one/$name" "$work/two/$name" || true; else echo "  $what/$name exists once"; fi
    done < <(cd "$work/one" && find . -type f -printf '%P\n' | sort)
    return 1
}
compare() { # compare FOLDER FOLDER
    local deb code=0 count=0
    for deb in "$1"/*.deb; do
        count=$((count + 1))
        if differences "$(basename "$deb")" "$deb" "$2/$(basename "$deb")"; then
            echo "$(basename "$deb"): the same $(stat -c %s "$deb") bytes, SHA-256 $(sha256sum <"$deb" | cut -d' ' -f1)"
        else
            code=1
        fi
    done
    [ $count -gt 0 ] || fail "there is no package in $1"
    return $code
}

if [ "${1:-}" = --packing ]; then
    here=$(realpath "${2:?FOLDER with the packages}")
    tools=$PWD/target/tools/bin
    mkdir -p "$other/one" "$other/two" "$other/repository/target/release"
    cp "$here"/*_amd64.deb "$other/one/"
    git ls-files -z | xargs -0 cp --parents -t "$other/repository"
    cp -r target/packaging "$other/repository/target/"
    cp target/release/brambled target/release/console "$other/repository/target/release/"
    touch -d '2001-02-03' "$other"/repository/target/release/* "$other"/repository/target/packaging/*
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH CARGO_TARGET_DIR=$other/repository/target TZ=Pacific/Auckland LC_ALL=C
    umask 077
    cd "$other/repository"
    for package in bramble-daemon bramble-console; do
        packaging/sbom.py $package x86_64-unknown-linux-gnu target/release/$package.cdx.json >/dev/null
        "$tools/cargo-deb" -p $package --no-build --strip --quiet --output "$other/two/"
    done
    compare "$other/one" "$other/two" || fail "packing the same programs twice gives different packages"
    exit 0
fi

git diff --quiet HEAD || fail "there are changes that are not committed; the other folder would lack them"
export BRAMBLE_ARCHS="${*:-amd64 arm64}" BRAMBLE_AS_BUILT=
git clone -q --no-hardlinks . "$other/clone"
mkdir -p "$other/clone/target/tools"
# The tool that packs need not be built twice.
[ ! -d target/tools/bin ] || cp -r target/tools/bin "$other/clone/target/tools/"
packaging/build-deb.sh "$other/one"
(cd "$other/clone" && TZ=Pacific/Auckland packaging/build-deb.sh "$other/two")
compare "$other/one" "$other/two" || fail "two builds differ"
echo "reproducible-test: two builds in two folders have the same bytes ($SECONDS s)"
