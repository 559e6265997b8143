#include "rendezvous/testing/large_job.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {
namespace {

// The time between two messages that reach the server.
constexpr absl::Duration kBetween = absl::Microseconds(5);

}  // namespace

LargeJob::LargeJob(uint32_t nodes, uint32_t slots)
    : slots_(slots), spec_(SpecOf(kName, nodes - 1, nodes, 0)), assigned_(nodes) {}

void LargeJob::Step(const Event& event) {
  Effects effects = core_.Step(now_, event);
  messages_ += effects.send.size();
  std::move(effects.append.begin(), effects.append.end(), std::back_inserter(records_));
  for (const SendToStream& send : effects.send) {
    const uint32_t node = static_cast<uint32_t>(send.stream.value) - 1;
    if (send.message.has_stop()) {
      stopping_.push_back(node);
      assigned_[node].reset();
    }
    if (!send.message.has_assign()) continue;
    generation_ = send.message.generation();
    assigned_[node] = send.message.assign();
  }
}

void LargeJob::Send(uint32_t node, const v1::NodeMessage& message) {
  Pass(kBetween);
  Step(NodeMessageReceived{StreamId{node + 1}, message});
}

void LargeJob::Pass(absl::Duration duration) {
  const MonoTime end = now_ + duration;
  while (core_.NextDeadline() <= end) {
    now_ = std::max(now_, core_.NextDeadline());
    Step(Tick{});
  }
  now_ = end;
}

void LargeJob::Join() {
  for (uint32_t node = 0; node < assigned_.size(); ++node) {
    Send(node, JoinFrom({kName, absl::StrCat("n", node), 1, 0}, spec_, slots_));
  }
}

void LargeJob::StartWorkers() {
  for (uint32_t node = 0; node < assigned_.size(); ++node) {
    if (!assigned_[node].has_value()) continue;
    for (uint32_t rank = 0; rank < slots_; ++rank) {
      Send(node, StartedFrom({kName, "", 1, generation_}, rank));
    }
  }
}

void LargeJob::LoseNode(uint32_t node) {
  Step(StreamClosed{StreamId{node + 1}});
  Pass(CoreConfig().reconnect_grace);
  assigned_[node].reset();
}

void LargeJob::StopWorkers() {
  const uint64_t stopped = generation_;
  for (const uint32_t node : std::exchange(stopping_, {})) {
    Send(node, StoppedFrom({kName, "", 1, stopped}));
  }
}

void LargeJob::Succeed() {
  for (uint32_t node = 0; node < assigned_.size(); ++node) {
    if (!assigned_[node].has_value()) continue;
    for (uint32_t rank = 0; rank < slots_; ++rank) {
      Send(node, ExitedFrom({kName, "", 1, generation_}, rank, 0, 0));
    }
  }
}

}  // namespace cadre
