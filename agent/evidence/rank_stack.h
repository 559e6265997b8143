// What is told of one worker to whoever asks where all are. Pure.
#ifndef CADRE_AGENT_EVIDENCE_RANK_STACK_H_
#define CADRE_AGENT_EVIDENCE_RANK_STACK_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/evidence/python_stack.h"
#include "proto/stacks.pb.h"

namespace cadre::agent {

// Of one stack: calls (the interpreter prints 100), calls whose source is read, and bytes of a
// name.
inline constexpr size_t kMaxStackFrames = 100;
inline constexpr size_t kMaxSourceLines = 16;
inline constexpr size_t kMaxFrameNameBytes = 256;
// Of all workers of a node, and of the text of one: an answer is one message.
inline constexpr size_t kMaxNodeStackBytes = 512 << 10;
inline constexpr size_t kMaxRankTextBytes = 256 << 10;

// The main thread's frames of what its interpreter said, the most recent call first.
void AddFrames(absl::string_view dump, const SourceReader& source, v1::RankStack* stack);

// In their order, as many with their frames and text as an answer holds; of the others it is said
// that they are left out.
v1::NodeStacks AnswerOf(std::vector<v1::RankStack> ranks);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_RANK_STACK_H_
