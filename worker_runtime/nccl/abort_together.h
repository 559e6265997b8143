// Ends several communicators at once: each may wait for what another one of them holds back, so one
// after the other can deadlock.
#ifndef CADRE_WORKER_RUNTIME_NCCL_ABORT_TOGETHER_H_
#define CADRE_WORKER_RUNTIME_NCCL_ABORT_TOGETHER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "cadre/communicator.h"
#include "cadre/status.h"

namespace cadre::nccl {

// Communicators that are ended by one call; each takes a thread.
constexpr size_t kMaxAbortedTogether = 64;

// Aborts and destroys all of them, in parallel: nobody else may hold them any more. Returns after
// `wait` at the latest. DEADLINE_EXCEEDED: some are not through and go on by themselves; says how
// many. INVALID_ARGUMENT: more than kMaxAbortedTogether; none was aborted.
Status AbortTogether(std::vector<std::unique_ptr<Communicator>> communicators, absl::Duration wait);

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_ABORT_TOGETHER_H_
