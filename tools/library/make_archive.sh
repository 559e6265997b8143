#!/bin/bash
# make_archive.sh OUTPUT README CADRE SUPERVISOR FILE...: an archive for machines without our packages. Unpacked anywhere, its bin/cadre runs
# jobs and its library can be linked: what that needs beyond the C and C++ libraries lies beside it, under names that no other
# program's libraries have.
set -euo pipefail
output=$(realpath -m "$1") docs=$(dirname "$2")/docs cadre=$3 supervisor=$4
shift 4
# shellcheck source=tools/library/stage.sh
source "$(dirname "$0")/stage.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(version_of "$cadre")
name=cadre-$version
root=$work/$name
install -D -m 755 "$cadre" "$root/bin/cadre"
install -D -m 755 "$supervisor" "$root/bin/cadre-supervisor"
strip "$root/bin/cadre" "$root/bin/cadre-supervisor"
stage "$root" "$version" lib "$@"
# Where one looks for them.
mv "$root/share/cadre/examples" "$root/examples"
mkdir -p "$root/examples/third_party"
cp -rL /usr/include/CLI "$root/examples/third_party/CLI"

cp -rL "$docs" "$root/docs"
chmod -R u+w "$root/docs"

bundle "$root/lib/libcadre.so.0"

cat > "$root/README" << END
Cadre $version for Linux, $(uname -m), glibc 2.34 or newer (RHEL 9, Ubuntu 22.04, Debian 12).

  bin/cadre run --standalone --nproc-per-node 2 PROGRAM
  cmake -S examples -B build && cmake --build build    # the examples, against the PyTorch of the active virtual environment
  export CMAKE_PREFIX_PATH=\$PWD                         # for find_package(cadre) in a project of your own

docs/ has the pages; docs/when_something_fails.md, docs/python.md and docs/training_in_cpp.md are where most begin.
END
# The same files give the same archive.
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$work" "$name" | gzip -n > "$output"
