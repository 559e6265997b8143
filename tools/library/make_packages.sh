#!/bin/bash
# make_packages.sh CADRE RUNTIME_OUTPUT DEV_OUTPUT FILE...: the Debian packages libcadre0, which programs need, and libcadre-dev, with
# which they are made.
set -euo pipefail
cadre=$1 runtime_output=$2 dev_output=$3
shift 3
# shellcheck source=tools/library/stage.sh
source "$(dirname "$0")/stage.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
version=$(version_of "$cadre")
architecture=$(dpkg --print-architecture)
libraries=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)

stage "$work/dev/usr" "$version" "$libraries" "$@"
mkdir -p "$work/runtime/usr/$libraries" "$work/dev/usr/share/doc/libcadre-dev"
mv "$work/dev/usr/$libraries/libcadre.so.0" "$work/runtime/usr/$libraries/"
mv "$work/dev/usr/share/cadre/examples" "$work/dev/usr/share/doc/libcadre-dev/examples"

# dpkg-shlibdeps wants a source package around it.
mkdir "$work/debian"
: > "$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O -xlibcadre0 "runtime/usr/$libraries/libcadre.so.0" 2> /dev/null | sed -n 's/^shlibs:Depends=//p')
if [[ -z $depends ]]; then
  echo "make_packages.sh: dpkg-shlibdeps does not say what the library needs" >&2
  exit 1
fi

# package FOLDER OUTPUT NAME SECTION DEPENDS RECOMMENDS DESCRIPTION
package() {
  local root=$work/$1 size
  size=$(du -sk "$root" | cut -f1)
  mkdir "$root/DEBIAN"
  cat > "$root/DEBIAN/control" << END
Package: $3
Version: $version
Architecture: $architecture
Maintainer: $(cat tools/debian/maintainer)
Installed-Size: $size
Depends: $5
Recommends: $6
Section: $4
Priority: optional
Description: $7
END
  [[ $1 != runtime ]] || echo 'activate-noawait ldconfig' > "$root/DEBIAN/triggers"
  # The same files give the same package.
  find "$root" -exec touch --no-dereference --date=@0 {} +
  SOURCE_DATE_EPOCH=0 dpkg-deb --root-owner-group --build "$root" "$2" > /dev/null
}

package runtime "$runtime_output" libcadre0 libs "$depends" cadre "runtime of distributed training programs
 Gradients averaged over the ranks of a job while the backward pass runs,
 collectives with deadlines, a store, checkpoints."
package dev "$dev_output" libcadre-dev libdevel "libcadre0 (= $version)" "cadre, cmake, g++, libcli11-dev" \
  "runtime of distributed training programs, for development
 Headers, a CMake package, the adapter for libtorch as sources, and examples."
