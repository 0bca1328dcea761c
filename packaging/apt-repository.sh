#!/usr/bin/env bash
# A signed flat apt repository: packaging/apt-repository.sh FOLDER FILE.deb.. adds the packages to FOLDER and signs it again.
# GPG_KEY names the signing key (fingerprint, in GNUPGHOME); without it, a key is created in ~/.config/bramble/apt-key.
# BRAMBLE_APT_DAYS is the validity of the list in days (default 180): run this again, without FILE.deb, before it expires.
# BRAMBLE_APT_URL is the address under which FOLDER is served, for install.sh; without it, install.sh takes the address as an argument.
set -euo pipefail
fail() { echo "apt-repository: $*" >&2; exit 1; }
[ $# -ge 1 ] || fail "usage: apt-repository.sh FOLDER FILE.deb.."
days=${BRAMBLE_APT_DAYS:-180}
[[ $days =~ ^-?[0-9]{1,4}$ ]] || fail "BRAMBLE_APT_DAYS is $days, not a number of days"
url=${BRAMBLE_APT_URL:-}
[[ -z $url || $url =~ ^(https?:/|file:)/[A-Za-z0-9._~:/@%+-]+$ ]] || fail "BRAMBLE_APT_URL is $url, not an address that begins with http://, https:// or file:/"
url=${url%/}
for program in dpkg-scanpackages gpg gzip sha256sum base64; do
    command -v "$program" >/dev/null || fail "needs $program: apt-get install dpkg-dev gpg"
done
folder=$(realpath -m "$1")
shift
mkdir -p "$folder"
template=$(dirname "$(realpath "$0")")/install.sh

if [ -z "${GPG_KEY:-}" ]; then
    export GNUPGHOME=${BRAMBLE_APT_KEY:-${XDG_CONFIG_HOME:-$HOME/.config}/bramble/apt-key}
    mkdir -p "$GNUPGHOME"
    chmod 700 "$GNUPGHOME"
    if ! gpg --batch --list-secret-keys --with-colons 2>/dev/null | grep -q ^sec; then
        gpg --batch --quiet --passphrase '' --quick-generate-key "Bramble packages" ed25519 sign never
        echo "apt-repository: made a key in $GNUPGHOME; keep it safe, nodes trust what it signs" >&2
    fi
    GPG_KEY=$(gpg --batch --list-secret-keys --with-colons 2>/dev/null | awk -F: '/^fpr/ {print $10; exit}')
fi

for file; do
    dpkg-deb --info "$file" >/dev/null || fail "$file is not a package"
    to=$folder/$(basename "$file")
    # The bytes of a published version must never change.
    if [ -e "$to" ] && ! cmp -s "$file" "$to"; then
        fail "$(basename "$file") already exists with different content: raise the version"
    fi
    install -m 644 "$file" "$to"
done

cd "$folder"
# Writes all new files next to the old ones, then renames them, the signature last. A node that reads in between finds an index that
# does not fit its signature and refuses it; its next `apt update` works.
new=$(mktemp -d .new.XXXXXX)
trap 'rm -rf "$folder/$new"' EXIT
dpkg-scanpackages --multiversion . /dev/null >"$new/Packages" 2>"$new/log" || { cat "$new/log" >&2; fail "dpkg-scanpackages"; }
[ -s "$new/Packages" ] || fail "there is no package in $folder"
gzip -9nk "$new/Packages"
{
    echo "Origin: Bramble"
    echo "Label: Bramble"
    echo "Suite: stable"
    echo "Architectures: $(sed -n 's/^Architecture: //p' "$new/Packages" | sort -u | tr '\n' ' ' | sed 's/ $//')"
    echo "Date: $(date -Ru)"
    # Limits how long an attacker can keep nodes on an old list.
    echo "Valid-Until: $(date -Ru -d "$days days")"
    echo "SHA256:"
    for name in Packages Packages.gz; do
        printf ' %s %s %s\n' "$(sha256sum "$new/$name" | cut -d' ' -f1)" "$(stat -c %s "$new/$name")" "$name"
    done
} >"$new/Release"
gpg --batch --yes --quiet --local-user "$GPG_KEY" --armor --detach-sign --output "$new/Release.gpg" "$new/Release"
gpg --batch --yes --quiet --local-user "$GPG_KEY" --clearsign --output "$new/InRelease" "$new/Release"
gpg --batch --yes --quiet --export "$GPG_KEY" >"$new/bramble.gpg"
# The script contains the key, so one checksum covers both.
fingerprint=$(gpg --batch --show-keys --with-colons "$new/bramble.gpg" 2>/dev/null | awk -F: '/^fpr/ {print $10; exit}')
{
    sed '/^@KEY@$/,$d' "$template"
    base64 -w 76 "$new/bramble.gpg"
    sed '1,/^@KEY@$/d' "$template"
} | sed -e "s|@ADDRESS@|$url|" -e "s|@FINGERPRINT@|$fingerprint|" -e "s|@SUM@|$(sha256sum <"$new/bramble.gpg" | cut -d' ' -f1)|" >"$new/install.sh"
address=${url:-ADDRESS}
line="curl -fsSLo install.sh $address/install.sh && echo '$(sha256sum <"$new/install.sh" | cut -d' ' -f1)  install.sh' | sha256sum -c && sudo sh install.sh $([ -n "$url" ] || echo ADDRESS)"
line=${line% }
cat >"$new/README" <<TEXT
On each node, once, this line installs Bramble; ADDRESS is the address under which this folder is served, or file:/FOLDER:

    $line

Send this line to operators out of band, for example by mail, not from this folder. Its checksum covers the script and the key in it, so
an attacker on the network can replace neither. The line changes only with the key or the script. The same steps by hand:

    sudo curl -fsSo /usr/share/keyrings/bramble.gpg $address/bramble.gpg
    echo 'deb [signed-by=/usr/share/keyrings/bramble.gpg] $address ./' | sudo tee /etc/apt/sources.list.d/bramble.list
    sudo apt update && sudo apt install bramble-daemon bramble-console

Then compare the key's fingerprint with the one that you received out of band:

    gpg --show-keys /usr/share/keyrings/bramble.gpg

From then on: sudo apt update && sudo apt upgrade on each node, then the restart that docs/upgrade.md describes.
Key: $fingerprint
TEXT
chmod 644 "$new"/*
for name in README install.sh bramble.gpg Packages Packages.gz Release Release.gpg InRelease; do
    mv "$new/$name" "$name"
done
echo "apt-repository: $(grep -c '^Package: ' Packages) packages in $folder, signed by $GPG_KEY"
echo "apt-repository: nodes install by: $line"
