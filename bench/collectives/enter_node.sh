#!/bin/sh
# For mpirun, in place of ssh: HOST COMMAND... in the namespace whose address ends as its name does.
host=$1
shift
exec ip netns exec "node${host##*.}" sh -c "$*"
