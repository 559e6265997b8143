# Sourced by what makes a folder of the cache once. made_once FOLDER MAKE: runs the function MAKE where FOLDER is missing, or was left
# unfinished, and prints FOLDER. One at a time; who waited finds it made.
# shellcheck shell=bash

# cache_folder: where such folders lie; CADRE_CACHE names another place.
cache_folder() {
  echo "${CADRE_CACHE:-${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}/.cache/cadre}"
}

made_once() {
  local folder=$1 make=$2
  if [[ ! -e $folder/complete ]]; then
    mkdir -p "$(dirname "$folder")"
    exec 9> "$folder.lock"
    flock 9
    if [[ ! -e $folder/complete ]]; then
      rm -rf "$folder"
      "$make" "$folder" >&2
      # Written last, so that one that was cut off is made anew.
      touch "$folder/complete"
    fi
  fi
  echo "$folder"
}
