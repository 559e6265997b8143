// The nodes of a cluster as Slurm's commands know them; and sinfo: its options and its table. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SINFO_TEXT_H_
#define CADRE_LAUNCHER_SLURM_SINFO_TEXT_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/slurm/squeue_text.h"
#include "proto/control.pb.h"

namespace cadre::launcher {

struct NodeRecord {
  std::string name;
  // "idle", "mixed", "allocated", "draining", "drained", "completing", "down*".
  std::string state;
  uint32_t cpus = 0;
  uint32_t cpus_in_use = 0;
  uint32_t gpus = 0;
  uint32_t gpus_in_use = 0;
  // In bytes; 0: it is not counted.
  uint64_t memory = 0;
  uint64_t memory_in_use = 0;
  // Its labels, as "switch=s1".
  std::vector<std::string> features;
  // Why it takes no work; empty: it does, or nobody said why.
  std::string reason;
  std::string version;
};

// In the order of their names, with numbers in theirs: n2 before n10.
std::vector<NodeRecord> NodesOf(const v1::ListNodesReply& nodes);

// "mix" for "mixed".
std::string CompactNodeState(absl::string_view state);

struct SinfoOptions {
  enum class Answer { kNone, kHelp, kVersion };
  Answer answer = Answer::kNone;
  std::set<std::string> nodes;
  // Long names; a drained node is "drained" or "draining".
  std::set<std::string> states;
  std::set<std::string> partitions;
  // A line for each node.
  bool by_node = false;
  bool long_list = false;
  bool summary = false;
  bool reasons = false;
  bool header = true;
  bool json = false;
  // Only nodes that answer, or only those that do not.
  bool responding = false;
  bool dead = false;
  std::string format;
  bool long_format = false;
  uint32_t every_seconds = 0;
};

// INVALID_ARGUMENT: the message follows "sinfo: ".
absl::StatusOr<SinfoOptions> ReadSinfo(const std::vector<std::string>& arguments,
                                       const std::map<std::string, std::string>& environment);

// INVALID_ARGUMENT: the format has a field that is not known.
absl::StatusOr<std::string> SinfoText(const std::vector<NodeRecord>& nodes,
                                      const SinfoOptions& options, const TextSurroundings& at);

std::string SinfoHelp();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SINFO_TEXT_H_
