#!/bin/bash
# make_wheel.sh OUTPUT README CADRE SUPERVISOR FILE...: the wheel cadre-train, for `pip install`: the command, its supervisor, the
# module cadre and, in its folder, the library with its headers and CMake package.
set -euo pipefail
output=$(realpath -m "$1") readme=$2 cadre=$3 supervisor=$4
shift 4
here=$(dirname "$0")
# shellcheck source=tools/library/stage.sh
source "$here/stage.sh"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
version=$(version_of "$cadre")
# Installed as they are: no interpreter starts in between.
scripts=$root/cadre_train-$version.data/scripts
install -D -m 755 "$cadre" "$scripts/cadre"
install -D -m 755 "$supervisor" "$scripts/cadre-supervisor"
strip "$scripts/cadre" "$scripts/cadre-supervisor"

installed=()
for file in "$@"; do
  case "$file" in
    python/*) put "$root" "$file" "${file#python/}" ;;
    *) installed+=("$file") ;;
  esac
done
stage "$root/cadre" "$version" lib "${installed[@]}"
bundle "$root/cadre/lib/libcadre.so.0"
# A wheel has no symbolic links; this is what a linker makes of one.
rm "$root/cadre/lib/libcadre.so"
echo 'INPUT(libcadre.so.0)' > "$root/cadre/lib/libcadre.so"

/usr/bin/python3 "$here/write_wheel.py" "$root" "$version" "$readme" "$output"
