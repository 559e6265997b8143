#!/bin/bash
# Each folder of examples, as it is installed, has all that it includes: a user may copy it alone.
set -euo pipefail
# shellcheck source=tools/library/stage.sh
source tools/library/stage.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
stage "$root" 0.0.0 lib "$@"

failed=0
for folder in "$root"/share/cadre/examples/*/; do
  [[ -e $folder/CMakeLists.txt ]] || continue
  name=$(basename "$folder")
  [[ -e $folder/example.cmake ]] || { echo "$name has no example.cmake"; failed=1; }
  while read -r header; do
    [[ -e $folder/$header ]] || { echo "$name includes ../$header, which does not lie in it"; failed=1; }
  done < <(sed -n 's|^#include "\.\./\(.*\)"$|\1|p' "$folder"/*.[ch]* | sort -u)
  # What CMake compiles.
  while read -r source; do
    [[ -e $folder/$source ]] || { echo "$name compiles $source, which does not lie in it"; failed=1; }
  done < <(grep -o '[a-z0-9_/]\+\.cc' "$folder/CMakeLists.txt" | sort -u)
done
[[ -e $root/share/cadre/examples/imagenet_template/cifar_resnet50/resnet.h ]] || { echo "nothing was looked at"; failed=1; }
exit $failed
