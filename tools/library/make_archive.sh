#!/bin/bash
# make_archive.sh OUTPUT CADRE SUPERVISOR FILE...: an archive for machines without our packages. Unpacked anywhere, its bin/cadre runs
# jobs and its library can be linked: what that needs beyond the C and C++ libraries lies beside it, under names that no other
# program's libraries have.
set -euo pipefail
output=$(realpath -m "$1") cadre=$2 supervisor=$3
shift 3
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

# Brings LIBRARY's own libraries along, in the folder where it lies, each under a name with its content's sum in it: another version
# that the program brings, from a wheel perhaps, is then another library to the dynamic linker.
bundle() {
  local library=$1 folder path base named needed
  folder=$(dirname "$library")
  local -A names=()
  while read -r base path; do
    case "$base" in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | ld-linux-* | libstdc++.so.* | libgcc_s.so.*) continue ;;
    esac
    named=${base%%.so*}-$(sha256sum "$path" | cut -c1-8).so${base#*.so}
    install -m 644 "$path" "$folder/$named"
    names[$base]=$named
  done < <(ldd "$library" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }')
  for path in "$library" "${names[@]/#/$folder/}"; do
    patchelf --set-rpath '$ORIGIN' "$path"
    [[ $path == "$library" ]] || patchelf --set-soname "${path##*/}" "$path"
    while read -r needed; do
      [[ -z ${names[$needed]:-} ]] || patchelf --replace-needed "$needed" "${names[$needed]}" "$path"
    done < <(patchelf --print-needed "$path")
  done
}
bundle "$root/lib/libcadre.so.0"

cat > "$root/README" << END
Cadre $version for Linux, $(uname -m), glibc 2.36 or newer (Debian 12, Ubuntu 24.04).

  bin/cadre run --standalone --nproc-per-node 2 PROGRAM
  cmake -S examples -B build && cmake --build build    # the examples, against the PyTorch of the active virtual environment
  export CMAKE_PREFIX_PATH=\$PWD                         # for find_package(cadre) in a project of your own
END
# The same files give the same archive.
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$work" "$name" | gzip -n > "$output"
