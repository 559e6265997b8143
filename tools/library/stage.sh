# Sourced by what makes packages: stage ROOT VERSION LIBRARIES FILE... lays an installed library out beneath ROOT. LIBRARIES is the
# folder of libraries in it: lib, or lib/x86_64-linux-gnu. FILEs are those of the checkout, by their paths in it.
# shellcheck shell=bash

# put ROOT SOURCE TARGET
put() { install -D -m 644 "$2" "$1/$3"; }

# make_whole EXAMPLE: what a folder of examples takes from those beside it comes into it as well, so that it can be copied alone.
make_whole() {
  local example=$1 taken=() before=-1 header source
  cp "$example/../example.cmake" "$example/"
  # Headers beside it that its own sources include, and what stands beside those: device/device.h, device/device.cc.
  mapfile -t taken < <(sed -n 's|^#include "\.\./\(.*\)"$|\1|p' "$example"/*.[ch]* | sort -u)
  while ((${#taken[@]} != before)); do
    before=${#taken[@]}
    for header in "${taken[@]}"; do
      for source in "${header%.h}.h" "${header%.h}.cc"; do
        [[ ! -e $example/../$source ]] || install -D -m 644 "$example/../$source" "$example/$source"
      done
    done
    # And what these include from their own folder.
    mapfile -t taken < <(for header in "${taken[@]}"; do
      echo "$header"
      sed -n "s|^#include \"\([^/\"]*\)\"\$|${header%/*}/\1|p" "$example/${header%.h}".[ch]*
    done | sort -u)
  done
}

stage() {
  local root=$1 version=$2 libraries=$3 file to_prefix
  shift 3
  to_prefix=$(sed 's/[^/]\+/../g' <<< "$libraries/pkgconfig")
  for file in "$@"; do
    case "$file" in
      */libcadre.so.0)
        put "$root" "$file" "$libraries/libcadre.so.0"
        strip --strip-unneeded "$root/$libraries/libcadre.so.0"
        ln -s libcadre.so.0 "$root/$libraries/libcadre.so"
        ;;
      worker_runtime/include/*) put "$root" "$file" "include/${file#worker_runtime/include/}" ;;
      # Its sources name headers beside them by their paths in the checkout.
      worker_runtime/torch/*.h) put "$root" "$file" "share/cadre/torch/$file" ;;
      worker_runtime/torch/*) put "$root" "$file" "share/cadre/torch/${file##*/}" ;;
      tools/library/cmake/*.cmake) put "$root" "$file" "$libraries/cmake/cadre/${file##*/}" ;;
      tools/library/cmake/*.cmake.in | tools/library/cadre.pc.in)
        local target=$libraries/cmake/cadre/$(basename "$file" .in)
        [[ $file != *.pc.in ]] || target=$libraries/pkgconfig/cadre.pc
        mkdir -p "$root/$(dirname "$target")"
        sed -e "s/@VERSION@/$version/" -e "s/@MAJOR@/${version%%.*}/" \
          -e "s/@MINOR@/$(cut -d. -f2 <<< "$version")/" -e "s|@TO_PREFIX@|$to_prefix|" "$file" > "$root/$target"
        ;;
      examples/*) put "$root" "$file" "share/cadre/$file" ;;
      *) echo "stage: nobody said where $file belongs" >&2; return 1 ;;
    esac
  done
  for file in "$root"/share/cadre/examples/*/CMakeLists.txt; do
    [[ ! -e $file ]] || make_whole "${file%/*}"
  done
}

# version_of CADRE: as the command itself says it.
version_of() { "$1" version | awk '{ print $2; exit }'; }

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
