#include "agent/evidence/rank_stack.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/utf8.h"

namespace cadre::agent {
namespace {

std::string Name(absl::string_view text) {
  return OneLine(ReplaceInvalidUtf8(text), kMaxFrameNameBytes);
}

// Whether the interpreter left out calls of the last thread that it printed.
bool IsCut(absl::string_view dump) {
  const size_t cut = dump.rfind("\n  ...");
  return cut != dump.npos && dump.find("hread 0x", cut) == dump.npos;
}

}  // namespace

void AddFrames(absl::string_view dump, const SourceReader& source, v1::RankStack* stack) {
  size_t sources = 0;
  stack->set_cut(IsCut(dump));
  const std::vector<PythonFrame> frames = MainThreadOf(dump);
  rpc::OwnPython program;
  std::for_each(frames.rbegin(), frames.rend(),
                [&](const PythonFrame& frame) { program.See(frame); });
  for (const PythonFrame& frame : frames) {
    if (static_cast<size_t>(stack->frames_size()) == kMaxStackFrames) {
      stack->set_cut(true);
      return;
    }
    v1::StackFrame* said = stack->add_frames();
    said->set_file(Name(frame.file));
    said->set_line(static_cast<uint32_t>(frame.line));
    said->set_function(Name(frame.function));
    said->set_own(program.Has(frame.file));
    if (said->own() && sources++ < kMaxSourceLines) {
      said->set_source(source(frame.file, frame.line));
    }
  }
}

v1::NodeStacks AnswerOf(std::vector<v1::RankStack> ranks) {
  v1::NodeStacks answer;
  size_t bytes = 0;
  for (v1::RankStack& rank : ranks) {
    if (bytes + rank.ByteSizeLong() > kMaxNodeStackBytes) {
      rank.clear_frames();
      rank.clear_text();
      rank.set_no_python("left out: the node's answer would be too long; ask for this rank alone");
    }
    bytes += rank.ByteSizeLong();
    *answer.add_ranks() = std::move(rank);
  }
  return answer;
}

}  // namespace cadre::agent
