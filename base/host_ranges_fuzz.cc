// Slurm's lists of hosts and tasks, "node[07-12,3]" and "4(x2),1", from the environment.
#include "absl/strings/match.h"
#include "base/check.h"
#include "base/host_ranges.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = cadre::fuzz::Text(data, size);
  const auto hosts = cadre::ExpandHosts(text);
  if (hosts.ok()) {
    // The compact form may differ from the text, but names the same hosts.
    const auto again = cadre::ExpandHosts(cadre::CompressHosts(*hosts));
    CADRE_CHECK(again.ok() && *again == *hosts);
  } else {
    CADRE_CHECK(!absl::StrContains(hosts.status().message(), "\n"));
  }
  const auto counts = cadre::ExpandCounts(text);
  if (counts.ok()) {
    const auto again = cadre::ExpandCounts(cadre::CompressCounts(*counts));
    CADRE_CHECK(again.ok() && *again == *counts);
  } else {
    CADRE_CHECK(!absl::StrContains(counts.status().message(), "\n"));
  }
  return 0;
}
