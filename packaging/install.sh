#!/bin/sh
# Installs Bramble from a signed apt repository: sudo sh install.sh [ADDRESS [FINGERPRINT]]
#
# packaging/apt-repository.sh replaces the words between @ signs: the key, and the address of the repository if it is known.
# With FINGERPRINT the script compares the key's fingerprint, which needs gpg. BRAMBLE_ROOT=FOLDER is for apt-repository-test.sh: it
# writes key and source below FOLDER.
set -eu
fail() { echo "install.sh: $*" >&2; exit 1; }

key() {
    base64 -d <<'KEY'
@KEY@
KEY
}

# A function, so that an incomplete script does nothing.
main() {
    address=${1:-@ADDRESS@} expected=${2:-} root=${BRAMBLE_ROOT:-}
    case $address in
        http://* | https://* | file:/*) ;;
        *) fail "usage: sudo sh install.sh ADDRESS; ADDRESS of the repository begins with http://, https:// or file:/" ;;
    esac
    [ "$(id -u)" -eq 0 ] || [ -n "$root" ] || fail "run it as root: sudo sh install.sh"
    command -v apt-get >/dev/null || fail "needs Debian, Raspberry Pi OS or Ubuntu (apt-get)"
    case $(dpkg --print-architecture) in
        amd64 | arm64) ;;
        *) fail "this system is $(dpkg --print-architecture); there are packages for arm64 and amd64 only" ;;
    esac
    trusted=$root/usr/share/keyrings/bramble.gpg
    mkdir -p "$root/usr/share/keyrings" "$root/etc/apt/sources.list.d"
    trap 'rm -f "$trusted.new"' EXIT
    key >"$trusted.new"
    [ "$(sha256sum <"$trusted.new" | cut -d' ' -f1)" = @SUM@ ] || fail "the key in this script is damaged: download it again"
    if [ -n "$expected" ]; then
        command -v gpg >/dev/null || fail "needs gpg to compare the fingerprint: apt-get install gpg"
        found=$(gpg --batch --show-keys --with-colons "$trusted.new" 2>/dev/null | awk -F: '/^fpr/ {print $10; exit}')
        [ "$found" = "$(printf %s "$expected" | tr -d ' ')" ] || fail "the key has the fingerprint $found, not $expected: do not install"
    fi
    # Replacing a trusted key is the operator's decision.
    if [ -e "$trusted" ] && ! cmp -s "$trusted" "$trusted.new"; then
        fail "this machine trusts another key for Bramble; if it was replaced on purpose: rm $trusted, and run this again"
    fi
    chmod 644 "$trusted.new"
    mv "$trusted.new" "$trusted"
    echo "deb [signed-by=/usr/share/keyrings/bramble.gpg] $address ./" >"$root/etc/apt/sources.list.d/bramble.list"
    echo "install.sh: trusts the key @FINGERPRINT@ for $address"
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y bramble-daemon bramble-console
}
main "$@"
