#include "worker_runtime/environment/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace cadre::environment {
namespace {

std::string Namespace(const char* path) {
  char text[64] = "";
  const ssize_t size = readlink(path, text, sizeof(text));
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
}

}  // namespace

std::string ThisMachine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Clones of one virtual machine have the same boot id.
  utsname names = {};
  uname(&names);
  return absl::StrCat(names.nodename, " ", boot, " ", Namespace("/proc/self/ns/pid"), " ",
                      Namespace("/proc/self/ns/net"));
}

}  // namespace cadre::environment
