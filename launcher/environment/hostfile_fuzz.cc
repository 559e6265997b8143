// A host file: it is parsed, or refused in one line that names it. Every host has a name.
#include "absl/strings/match.h"
#include "base/check.h"
#include "launcher/environment/hostfile.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto hosts = cadre::launcher::ParseHostfile(cadre::fuzz::Text(data, size), "hosts");
  if (!hosts.ok()) {
    CADRE_CHECK(absl::StrContains(hosts.status().message(), "hosts"));
    CADRE_CHECK(!absl::StrContains(hosts.status().message(), "\n"));
    return 0;
  }
  CADRE_CHECK(hosts->size() <= cadre::launcher::kMaxHostfileHosts);
  for (const auto& host : *hosts) CADRE_CHECK(!host.name.empty());
  return 0;
}
