#!/bin/bash
# make_package.sh CADRE SUPERVISOR SCHEMA OUTPUT: the Debian package of these two programs, with what lies beside this script.
set -euo pipefail
cadre=$1 supervisor=$2 schema=$3 output=$4
here=$(dirname "$0")

root=$(mktemp -d)
chmod 755 "$root"
trap 'rm -rf "$root"' EXIT
put() { install -D -m "$1" "$2" "$root/$3"; }

# The command looks for the supervisor beside what it really is.
put 755 "$cadre" usr/lib/cadre/cadre
put 755 "$supervisor" usr/lib/cadre/cadre-supervisor
strip "$root"/usr/lib/cadre/*
mkdir -p "$root/usr/bin"
ln -s ../lib/cadre/cadre "$root/usr/bin/cadre"
put 644 "$here/cadre.yaml" etc/cadre/cadre.yaml
put 644 "$here/cadre-server.service" lib/systemd/system/cadre-server.service
put 644 "$here/cadre-agent.service" lib/systemd/system/cadre-agent.service
put 644 "$schema" usr/share/cadre/job.schema.json

write() {
  mkdir -p "$(dirname "$root/$1")"
  cat > "$root/$1"
}
"$cadre" man | gzip -9n | write usr/share/man/man1/cadre.1.gz
"$cadre" completion bash | write usr/share/bash-completion/completions/cadre
"$cadre" completion zsh | write usr/share/zsh/vendor-completions/_cadre
"$cadre" completion fish | write usr/share/fish/vendor_completions.d/cadre.fish

# dpkg-shlibdeps wants a source package around it.
mkdir "$root/debian"
: > "$root/debian/control"
depends=$(cd "$root" && dpkg-shlibdeps -O usr/lib/cadre/cadre usr/lib/cadre/cadre-supervisor 2> /dev/null | sed -n 's/^shlibs:Depends=//p')
rm -r "$root/debian"
if [[ -z $depends ]]; then
  echo "make_package.sh: dpkg-shlibdeps does not say what the programs need" >&2
  exit 1
fi

version=$("$cadre" version | awk '{ print $2; exit }')
size=$(du -sk "$root" | cut -f1)
mkdir "$root/DEBIAN"
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$(dpkg --print-architecture)/" -e "s/@SIZE@/$size/" -e "s/@DEPENDS@/$depends/" \
  -e "s/@MAINTAINER@/$(cat "$here/maintainer")/" \
  "$here/control.in" > "$root/DEBIAN/control"
echo /etc/cadre/cadre.yaml > "$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do put 755 "$here/$script" "DEBIAN/$script"; done
# The same files give the same package.
find "$root" -exec touch --no-dereference --date=@0 {} +
SOURCE_DATE_EPOCH=0 dpkg-deb --root-owner-group --build "$root" "$output" > /dev/null
