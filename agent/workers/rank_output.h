// Turns what a worker writes, in pieces of any size, into whole lines with a prefix. Pure; one
// thread.
#ifndef CADRE_AGENT_WORKERS_RANK_OUTPUT_H_
#define CADRE_AGENT_WORKERS_RANK_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre::agent {

// A longer line is split, each part but the last ending with kSplitMarker.
inline constexpr size_t kMaxOutputLine = 256 << 10;
inline constexpr absl::string_view kSplitMarker = " [line continues]";

// What a prefix template may name.
struct PrefixFields {
  std::string host;
  std::string role;
  uint32_t rank = 0;
  uint32_t local_rank = 0;
};

// Replaces ${host} (torchrun's ${hostname}), ${role_name}, ${rank} and ${local_rank}; an empty
// template is
// "[${host}:${rank}] ". Unknown names stay as they are.
std::string LinePrefix(absl::string_view prefix_template, const PrefixFields& fields);

class LineAssembler {
 public:
  explicit LineAssembler(std::string prefix = "") : prefix_(std::move(prefix)) {}

  // The lines that `bytes` completes, each with prefix and '\n'. A carriage return alone ends a
  // line too: progress bars come out one state a line. `dropped` bytes were lost before these.
  std::string Add(absl::string_view bytes, uint32_t dropped = 0);

  const std::string& prefix() const { return prefix_; }

  // What is left of a last line that has no end; empty when there is none.
  std::string Finish();

 private:
  void EndLine(std::string& out, absl::string_view marker);

  std::string prefix_;
  std::string line_;  // at most kMaxOutputLine
  bool after_return_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_RANK_OUTPUT_H_
