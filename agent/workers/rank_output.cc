#include "agent/workers/rank_output.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"

namespace cadre::agent {

std::string LinePrefix(absl::string_view prefix_template, const PrefixFields& fields) {
  if (prefix_template.empty()) prefix_template = "[${host}:${rank}] ";
  return absl::StrReplaceAll(prefix_template, {{"${host}", fields.host},
                                               {"${hostname}", fields.host},
                                               {"${role_name}", fields.role},
                                               {"${rank}", absl::StrCat(fields.rank)},
                                               {"${local_rank}", absl::StrCat(fields.local_rank)}});
}

void LineAssembler::Emit(std::string& out, absl::string_view end) {
  if (!within_line_) {
    // What a carriage return at its begin goes back to is the begin of the prefix.
    const size_t text = std::min(line_.find_first_not_of('\r'), line_.size());
    absl::StrAppend(&out, absl::string_view(line_).substr(0, text), prefix_);
    line_.erase(0, text);
  }
  absl::StrAppend(&out, line_, end);
  line_.clear();
  within_line_ = end.empty();
}

bool LineAssembler::HasText() const {
  return within_line_ || line_.find_first_not_of('\r') != std::string::npos;
}

std::string LineAssembler::Interrupt() {
  return std::exchange(within_line_, false) ? absl::StrCat(kSplitMarker, "\n") : "";
}

std::string LineAssembler::Add(absl::string_view bytes, uint32_t dropped) {
  std::string out;
  if (dropped != 0) {
    if (HasText()) Emit(out, "");
    out += Interrupt();
    absl::StrAppend(&out, prefix_, "[", dropped, " bytes left out here; the log file has them]\n");
    after_return_ = return_is_out_ = false;
  }
  while (!bytes.empty()) {
    const bool newline = bytes.front() == '\n';
    if (std::exchange(return_is_out_, false) && newline) {
      out += '\n';
      bytes.remove_prefix(1);
      continue;
    }
    if (std::exchange(after_return_, false)) {
      if (HasText()) {
        Emit(out, newline ? "\r\n" : "\r");
        bytes.remove_prefix(newline ? 1 : 0);
      } else if (line_.empty()) {
        line_ = "\r";
      } else {
        out += '\r';
      }
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    CADRE_CHECK(line_.size() <= kMaxOutputLine, "a line of ", line_.size(), " bytes");
    const size_t room = kMaxOutputLine - line_.size();
    const size_t take = std::min({end, bytes.size(), room});
    absl::StrAppend(&line_, bytes.substr(0, take));
    bytes.remove_prefix(take);
    if (bytes.empty()) break;
    if (take != end) {  // the line is full and goes on
      Emit(out, "");
      continue;
    }
    after_return_ = bytes.front() == '\r';
    bytes.remove_prefix(1);
    if (!after_return_) Emit(out, "\n");
  }
  // Whoever reads a pipe sees the state of a progress bar when it is written.
  if (after_return_ && HasText()) {
    Emit(out, "\r");
    after_return_ = false;
    return_is_out_ = true;
  }
  return out;
}

std::string LineAssembler::Finish() {
  std::string out;
  if (HasText()) Emit(out, "\n");
  line_.clear();
  after_return_ = return_is_out_ = false;
  return out;
}

}  // namespace cadre::agent
