#!/bin/bash
# clean_root.sh FOLDER SCRIPT PACKAGE...: runs SCRIPT, as root, where this machine's files are beneath and the packages lie in /tmp.
# What it changes goes no further. At the end a line "left: FILE" for each that was not there before or is another
# one now, but for what dpkg, the loader and the user database keep for themselves.
set -euo pipefail
folder=$1 script=$2

if [[ -z ${CADRE_CLEAN_ROOT:-} ]]; then
  CADRE_CLEAN_ROOT=1 exec unshare --mount --pid --fork --kill-child --propagation private "$0" "$@"
fi
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/changed" "$folder/work" "$folder/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/changed,workdir=$folder/work" "$folder/root"
mount -t proc proc "$folder/root/proc"
mount --rbind /dev "$folder/root/dev"
# Nothing is seen of this machine's daemons there.
mount -t tmpfs tmpfs "$folder/root/run"
mount -t tmpfs tmpfs "$folder/root/tmp"
chmod 1777 "$folder/root/tmp"
install -m 644 "${@:3}" "$folder/root/tmp"

status=0
chroot "$folder/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
  bash -euc "$script" < /dev/null || status=$?

cd "$folder/changed"
while IFS= read -r -d '' file; do
  case "$file" in
    ./var/lib/dpkg/* | ./var/log/dpkg.log | ./var/cache/man/* | ./var/cache/ldconfig/* | ./etc/ld.so.cache | ./etc/*- | ./etc/.pwd.lock) ;;
    *) cmp -s "$file" "/$file" || echo "left: ${file#.}" ;;
  esac
done < <(find . -not -type d -print0)
exit "$status"
