#!/bin/bash
# make_archive.sh OUTPUT ARCHIVE FILE...: what checks a machine with a GPU, in one archive: all of ARCHIVE, the library's, and FILEs of
# the checkout, by their paths in it.
set -euo pipefail
output=$(realpath -m "$1") archive=$2
shift 2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar --extract --gzip --file="$archive" --directory="$work"
unpacked=$(basename "$work"/cadre-*)
name=cadre-gpu-check-${unpacked#cadre-}
root=$work/$name
mv "$work/$unpacked" "$root"

for file in "$@"; do
  case "$file" in
    */tools/gpu_check | tools/gpu_check) install -D -m 755 "$file" "$root/gpu_check" ;;
    *.py) case "$file" in
      tools/gpu/*) install -D -m 644 "$file" "$root/gpu/${file##*/}" ;;
      examples/*) install -D -m 644 "$file" "$root/$file" ;;
      bench/*) install -D -m 644 "$file" "$root/src/$file" ;;
      *) echo "make_archive: nobody said where $file belongs" >&2; exit 1 ;;
    esac ;;
    bench/*) install -D -m 644 "$file" "$root/src/$file" ;;
    *) install -D -m 755 "$file" "$root/tests/${file##*/}"; strip "$root/tests/${file##*/}" ;;
  esac
done
cat > "$root/README" << END
Checks Cadre on a machine with a GPU: Linux, $(uname -m), glibc 2.34 or newer, a C++ compiler, Python 3.8 or newer and PyTorch with CUDA.

  ./gpu_check                       with the python3 that is active; --python names another one
END
# The same files give the same archive.
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$work" "$name" | gzip -9n > "$output"
