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
  mode=644
  case "$file" in
    tools/gpu_check) target=gpu_check mode=755 ;;
    tools/gpu/*) target=gpu/${file##*/} ;;
    examples/*) target=$file ;;
    bench/*) target=src/$file ;;
    bazel-out/*) target=tests/${file##*/} mode=755 ;;
    *) echo "make_archive: nobody said where $file belongs" >&2; exit 1 ;;
  esac
  install -D -m "$mode" "$file" "$root/$target"
  [[ $target != tests/* ]] || strip "$root/$target"
done
cat > "$root/README" << END
Checks Cadre on a machine with a GPU: Linux, $(uname -m), glibc 2.34 or newer, a C++ compiler, Python 3.8 or newer and PyTorch with CUDA.

  ./gpu_check                       with the python3 that is active; --python names another one
END
# The same files give the same archive.
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$work" "$name" | gzip -9n > "$output"
