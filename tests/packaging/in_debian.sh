#!/bin/bash
# in_debian.sh FOLDER ROOT SCRIPT [PATH...]: runs SCRIPT, as root, in the Debian ROOT (tools/debian_root), of which nothing is changed;
# each PATH of this machine lies there under the same name, read-only. FOLDER is empty, for what is mounted.
set -euo pipefail
folder=$1 base=$2 script=$3
shift 3

if [[ -z ${CADRE_IN_DEBIAN:-} ]]; then
  CADRE_IN_DEBIAN=1 exec unshare --mount --pid --net --fork --kill-child --propagation private "$0" "$folder" "$base" "$script" "$@"
fi
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/changed" "$folder/work" "$folder/root"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$folder/changed,workdir=$folder/work" "$folder/root"
mount -t proc proc "$folder/root/proc"
mount --rbind /dev "$folder/root/dev"
mount -t tmpfs tmpfs "$folder/root/run"
mount -t tmpfs tmpfs "$folder/root/tmp"
chmod 1777 "$folder/root/tmp"
for path in "$@"; do
  if [[ -d $path ]]; then mkdir -p "$folder/root$path"; else install -D /dev/null "$folder/root$path"; fi
  mount --bind "$(realpath "$path")" "$folder/root$path"
  mount -o remount,bind,ro "$folder/root$path"
done
# As every installed system has it.
echo "127.0.0.1 localhost $(hostname)" > "$folder/root/etc/hosts"
ip link set lo up
exec chroot "$folder/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root bash -euc "$script" < /dev/null
