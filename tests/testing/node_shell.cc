#include "tests/testing/node_shell.h"

#include <sys/stat.h>

#include <fstream>

#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr char kShell[] = R"(#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=${1#*@}
shift
[[ -e /run/netns/$host ]] || { echo "no node $host" >&2; exit 255; }
exec ip netns exec "$host" unshare --uts bash -c "hostname $host; $*"
)";

}  // namespace

std::string MakeNodeShell() {
  const std::string path = MakeTempDir("shell") + "/node_shell";
  std::ofstream(path) << kShell;
  chmod(path.c_str(), 0755);
  return path;
}

}  // namespace cadre
