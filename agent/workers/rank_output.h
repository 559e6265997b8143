// Turns what a worker writes, in pieces of any size, into whole lines with a prefix. Pure; one
// thread.
#ifndef CADRE_AGENT_WORKERS_RANK_OUTPUT_H_
#define CADRE_AGENT_WORKERS_RANK_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace cadre::agent {

// A line is held until it ends, so that it comes out in one piece. Of a longer one what there is
// comes out without an end, and the rest follows as it is.
inline constexpr size_t kMaxOutputLine = 4 << 20;
// Ends such a part of a line where something else has to come between it and the rest, which has a
// prefix of its own then.
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

// For pipes: nothing but the prefix is added, at the begin of each line and of each state of one
// that carriage returns overwrite.
class LineAssembler {
 public:
  explicit LineAssembler(std::string prefix = "") : prefix_(std::move(prefix)) {}

  // The lines that `bytes` completes, each with prefix and '\n', or '\r' of one that goes on being
  // overwritten. `dropped` bytes were lost before these.
  std::string Add(absl::string_view bytes, uint32_t dropped = 0);

  const std::string& prefix() const { return prefix_; }
  // What came out last has no end, and the rest of the line is to follow it.
  bool within_line() const { return within_line_; }
  // Something else comes before that; returns what has to stand before it.
  std::string Interrupt();

  // What is left of a last line that has no end; empty when there is none.
  std::string Finish();

 private:
  void Emit(std::string& out, absl::string_view end);
  // The line has more than carriage returns.
  bool HasText() const;

  std::string prefix_;
  std::string line_;  // at most kMaxOutputLine
  // The last byte was a carriage return: it is neither in line_ nor out, or it is out.
  bool after_return_ = false;
  bool return_is_out_ = false;
  bool within_line_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_RANK_OUTPUT_H_
