#!/usr/bin/env bash
# Tests packaging/apt-repository.sh with its own packages: apt accepts the repository, offers an upgrade, refuses a modified list and an
# unknown signature. Does not touch this machine's apt: all folders are temporary.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "apt-repository-test: $*" >&2; exit 1; }
for program in apt-get dpkg-deb dpkg-scanpackages gpg; do
    command -v "$program" >/dev/null || { echo "SKIPPED apt-repository: needs $program"; exit 0; }
done
work=$(mktemp -d)
trap 'GNUPGHOME=$work/key gpgconf --kill all 2>/dev/null || true; GNUPGHOME=$work/other gpgconf --kill all 2>/dev/null || true; rm -rf "$work"' EXIT
# apt reads as a user of its own.
chmod 755 "$work"
export BRAMBLE_APT_KEY=$work/key

package() { # package VERSION: a package that holds a text
    local root=$work/root-$1
    mkdir -p "$root/DEBIAN" "$root/usr/share/bramble-probe"
    echo "$1" >"$root/usr/share/bramble-probe/version"
    printf 'Package: bramble-probe\nVersion: %s\nArchitecture: all\nMaintainer: Bramble <developers@bramble.invalid>\nDescription: probe\n' "$1" >"$root/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$root" "$work/bramble-probe_$1_all.deb" >/dev/null
}
apt() {
    apt-get -q -o Dir="$work/apt" -o Dir::State::status="$work/apt/status" -o APT::Architecture=amd64 -o APT::Architectures=amd64 \
        -o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root -o Acquire::Check-Date=true -o Acquire::Check-Valid-Until=true -o Debug::NoLocking=true "$@"
}

package 1.0
package 1.1
packaging/apt-repository.sh "$work/repository" "$work/bramble-probe_1.0_all.deb"
mkdir -p "$work"/apt/{etc/apt,var/lib/apt/lists/partial,var/cache/apt/archives/partial}
mkdir -p "$work"/apt/etc/apt/{apt.conf.d,preferences.d}
cp "$work/repository/bramble.gpg" "$work/trusted.gpg"
echo "deb [signed-by=$work/trusted.gpg] file:$work/repository ./" >"$work/apt/sources.list"
printf 'Package: bramble-probe\nStatus: install ok installed\nVersion: 1.0\nArchitecture: all\nMaintainer: x\nDescription: probe\n\n' >"$work/apt/status"

apt update >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt refuses the repository"; }
apt -s upgrade | grep -q '^Inst' && fail "there is nothing to upgrade yet"
packaging/apt-repository.sh "$work/repository" "$work/bramble-probe_1.1_all.deb"
apt update >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt refuses the second signature"; }
apt -s upgrade | grep -q '^Inst bramble-probe \[1.0\] (1.1' || fail "apt offers no upgrade"
(cd "$work" && apt download bramble-probe=1.1 >"$work/log" 2>&1) || { cat "$work/log" >&2; fail "apt does not get the package"; }
echo "an upgrade is seen and loaded"

# The printed line installs from the repository. This machine stays unchanged: install.sh writes below $work/machine, and apt-get is
# the function above.
line=$(BRAMBLE_APT_URL=file:$work/repository packaging/apt-repository.sh "$work/repository" | sed -n 's/^apt-repository: nodes install by: //p')
mkdir -p "$work/bin" "$work/machine"
export work
{ echo '#!/usr/bin/env bash'; declare -f apt; cat <<'SCRIPT'; } >"$work/bin/apt-get"
PATH=${PATH#*:}
sed "s|/usr/share/keyrings|$work/machine&|" "$work/machine/etc/apt/sources.list.d/bramble.list" >"$work/apt/sources.list"
# In place of the real packages.
[[ $* != *install* ]] || set -- -s install bramble-probe
apt "$@" && echo "apt-get $1 ended well"
SCRIPT
printf '#!/bin/sh\nBRAMBLE_ROOT=%s exec "$@"\n' "$work/machine" >"$work/bin/sudo"
chmod +x "$work/bin/apt-get" "$work/bin/sudo"
install_by() { (cd "$work" && rm -f install.sh && PATH=$work/bin:$PATH bash -c "$1") >"$work/log" 2>&1; }
[[ $line == *" file:$work/repository/install.sh "* ]] || fail "no line to install by: $line"
install_by "$line" || { cat "$work/log" >&2; fail "the printed line does not install"; }
[ "$(grep -c 'ended well' "$work/log")" -eq 2 ] || { cat "$work/log" >&2; fail "the printed line skips apt-get"; }
cmp -s "$work/machine/usr/share/keyrings/bramble.gpg" "$work/repository/bramble.gpg" || fail "the installed key differs"
fingerprint=$(sed -n 's/^Key: //p' "$work/repository/README")
install_by "sudo sh '$work/repository/install.sh' '' '$fingerprint'" || { cat "$work/log" >&2; fail "the right fingerprint is refused"; }
install_by "sudo sh '$work/repository/install.sh' '' '${fingerprint/[0-9]/F}F'" && fail "a wrong fingerprint is accepted"
grep -q "do not install" "$work/log" || fail "the wrong fingerprint is not reported"
# A script that was changed or cut off in transit, and a machine that trusts another key.
cp "$work/repository/install.sh" "$work/install.whole"
echo 'echo changed' >>"$work/repository/install.sh"
install_by "$line" && fail "a changed script runs"
grep -q "^install.sh: FAILED" "$work/log" || fail "the checksum is not the reason"
head -n -2 "$work/install.whole" >"$work/repository/install.sh"
rm -rf "$work/machine/etc"
install_by "sudo sh '$work/repository/install.sh'" || true
[ ! -e "$work/machine/etc" ] || fail "half a script runs"
cp "$work/install.whole" "$work/repository/install.sh"
echo other >"$work/machine/usr/share/keyrings/bramble.gpg"
install_by "$line" && fail "another key is replaced"
grep -q "trusts another key" "$work/log" || fail "the reason is not reported"
rm -rf "$work"/machine "$work"/apt/var/lib/apt/lists/*
mkdir -p "$work/apt/var/lib/apt/lists/partial"
echo "deb [signed-by=$work/trusted.gpg] file:$work/repository ./" >"$work/apt/sources.list"
echo "one line installs from it"

# The bytes of a published version never change.
echo changed >>"$work/root-1.1/usr/share/bramble-probe/version"
dpkg-deb --root-owner-group --build "$work/root-1.1" "$work/bramble-probe_1.1_all.deb" >/dev/null
packaging/apt-repository.sh "$work/repository" "$work/bramble-probe_1.1_all.deb" 2>"$work/log" && fail "a version changed its bytes"
grep -q "raise the version" "$work/log" || fail "the reason is not reported"

# A list that was modified after it was signed.
cp -r "$work/repository" "$work/good"
sed -i 's/^Version: 1.1/Version: 6.6/' "$work/repository/Packages"
gzip -9nkf "$work/repository/Packages"
rm -rf "$work"/apt/var/lib/apt/lists/* && mkdir -p "$work/apt/var/lib/apt/lists/partial"
apt update >"$work/log" 2>&1 && ! grep -q "^[EW]:" "$work/log" && fail "apt accepts a modified list"
apt -s upgrade 2>/dev/null | grep -q '6\.6' && fail "apt uses a modified list"
# An expired list: an attacker withholds the new one.
rm -rf "$work/repository" && cp -r "$work/good" "$work/repository"
BRAMBLE_APT_DAYS=-1 packaging/apt-repository.sh "$work/repository"
rm -rf "$work"/apt/var/lib/apt/lists/* && mkdir -p "$work/apt/var/lib/apt/lists/partial"
apt update >"$work/log" 2>&1 && ! grep -q "^[EW]:" "$work/log" && fail "apt accepts an expired list"
grep -qi "expired" "$work/log" || { cat "$work/log" >&2; fail "apt does not report that the list has expired"; }
# A valid list with a different signature.
rm -rf "$work/repository" && cp -r "$work/good" "$work/repository"
BRAMBLE_APT_KEY=$work/other packaging/apt-repository.sh "$work/repository" 2>/dev/null
rm -rf "$work"/apt/var/lib/apt/lists/* && mkdir -p "$work/apt/var/lib/apt/lists/partial"
apt update >"$work/log" 2>&1 && ! grep -q "^[EW]:" "$work/log" && fail "apt accepts an unknown signature"
grep -qi "NO_PUBKEY\|not signed\|couldn't be verified" "$work/log" || { cat "$work/log" >&2; fail "apt does not report the signature"; }
echo "apt-repository-test: passed"
