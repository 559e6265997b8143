// The answer about one worker to the question where a job's ranks are. Pure.
#ifndef CADRE_AGENT_EVIDENCE_RANK_STACK_H_
#define CADRE_AGENT_EVIDENCE_RANK_STACK_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/evidence/python_stack.h"
#include "proto/stacks.pb.h"

namespace cadre::agent {

// Limits of one stack: its calls (the interpreter prints 100), the calls whose source is read, and
// the bytes of a name.
inline constexpr size_t kMaxStackFrames = 100;
inline constexpr size_t kMaxSourceLines = 16;
inline constexpr size_t kMaxFrameNameBytes = 256;
// An answer is one message: so many bytes hold all workers of a node, and the text of one.
inline constexpr size_t kMaxNodeStackBytes = 512 << 10;
inline constexpr size_t kMaxRankTextBytes = 256 << 10;

// The main thread's frames of what its interpreter said, the most recent call first.
void AddFrames(absl::string_view dump, const SourceReader& source, v1::RankStack* stack);

// The answer has the ranks in this order. As many as it holds have their frames and text; the
// others say that these were left out.
v1::NodeStacks AnswerOf(std::vector<v1::RankStack> ranks);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_RANK_STACK_H_
