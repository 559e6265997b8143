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
inline constexpr size_t kMaxOutputLine = 16 << 10;
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
  // What a carriage return does to what was written before it in the line, as progress bars use it.
  enum class Returns {
    kKept,       // it comes out, with its prefix and the carriage return: for pipes
    kOverwrites  // it goes: current() has what the line shows now, for who draws that
  };
  explicit LineAssembler(std::string prefix = "", Returns returns = Returns::kKept)
      : prefix_(std::move(prefix)), returns_(returns) {}

  // The lines that `bytes` completes, each with prefix and '\n'. `dropped` bytes were lost before
  // these.
  std::string Add(absl::string_view bytes, uint32_t dropped = 0);

  const std::string& prefix() const { return prefix_; }
  // Of a line that is being overwritten, without the prefix; else empty.
  absl::string_view current() const {
    return overwritten_ || after_return_ ? absl::string_view(line_) : "";
  }

  // What is left of a last line that has no end; empty when there is none.
  std::string Finish();

 private:
  void EndLine(std::string& out, absl::string_view end);
  void AfterReturn(char next, std::string& out);

  std::string prefix_;
  Returns returns_;
  std::string line_;           // at most kMaxOutputLine
  bool after_return_ = false;  // the last byte was one
  bool overwritten_ = false;   // the line has been, at least once
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_RANK_OUTPUT_H_
