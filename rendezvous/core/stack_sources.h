// Which nodes are asked where the workers of a job are. Pure.
#ifndef CADRE_RENDEZVOUS_CORE_STACK_SOURCES_H_
#define CADRE_RENDEZVOUS_CORE_STACK_SOURCES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/job/jobs.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/ids.h"

namespace cadre {

struct StackSources {
  struct Node {
    saved::Member member;
    // Absent: it is not asked.
    std::optional<StreamId> stream;
    // Then why, in words: it is not connected, or of a version that would not answer.
    std::string why;
  };
  std::string job;
  uint64_t generation = 0;
  uint32_t world_size = 0;
  std::vector<Node> nodes;
};

// NOT_FOUND: no such job. FAILED_PRECONDITION: no worker of it runs, or it has no such rank.
absl::StatusOr<StackSources> FindStacks(const v1::GetStacksRequest& request,
                                        const state::State& state, const job::Jobs& jobs);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_STACK_SOURCES_H_
