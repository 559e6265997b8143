// Slurm's lists of hosts and tasks, "node[07-12,3]" and "4(x2),1", from the environment.
#include "absl/strings/match.h"
#include "base/check.h"
#include "launcher/environment/host_list.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = cadre::fuzz::Text(data, size);
  const auto hosts = cadre::launcher::ExpandHostList(text);
  if (!hosts.ok()) CADRE_CHECK(!absl::StrContains(hosts.status().message(), "\n"));
  const auto tasks = cadre::launcher::ExpandTasksPerNode(text);
  if (!tasks.ok()) CADRE_CHECK(!absl::StrContains(tasks.status().message(), "\n"));
  return 0;
}
