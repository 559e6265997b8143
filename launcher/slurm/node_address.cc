#include "launcher/slurm/node_address.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "launcher/slurm/program_output.h"

namespace cadre::launcher {
namespace {

// slurmctld may be busy; srun itself waits longer.
constexpr absl::Duration kTimeout = absl::Seconds(20);

std::string WithoutBrackets(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "[")) absl::ConsumeSuffix(&address, "]");
  return std::string(address);
}

}  // namespace

std::string AddressInAliases(absl::string_view aliases, absl::string_view node) {
  for (absl::string_view alias : absl::StrSplit(aliases, ',')) {
    if (!absl::ConsumePrefix(&alias, node) || !absl::ConsumePrefix(&alias, ":")) continue;
    const size_t end = alias.empty() || alias[0] != '[' ? alias.find(':') : alias.find(']') + 1;
    return WithoutBrackets(alias.substr(0, end));
  }
  return "";
}

std::string AddressInShownNode(absl::string_view text, absl::string_view node) {
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&word, "NodeAddr=") && word != node) return WithoutBrackets(word);
  }
  return "";
}

std::string SlurmNodeAddress(absl::string_view aliases, const std::string& node) {
  std::string address = AddressInAliases(aliases, node);
  if (!address.empty()) return address;
  const absl::StatusOr<ProgramOutput> shown =
      RunProgram({"scontrol", "show", "node", node}, kTimeout);
  return shown.ok() && shown->status == 0 ? AddressInShownNode(shown->standard_output, node) : "";
}

}  // namespace cadre::launcher
