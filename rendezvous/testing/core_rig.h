// CoreRig: a Core whose time a test moves, and which counts its records and messages.
#ifndef CADRE_RENDEZVOUS_TESTING_CORE_RIG_H_
#define CADRE_RENDEZVOUS_TESTING_CORE_RIG_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "rendezvous/core/core.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {

class CoreRig : public testing::Test {
 protected:
  Effects Step(const Event& event) {
    Effects effects = core_.Step(now_, event);
    records_ += effects.append.size();
    messages_ += effects.send.size();
    return effects;
  }
  // Steps like a host that is never late.
  void TickUntil(MonoTime end) {
    while (core_.NextDeadline() <= end) {
      now_ = core_.NextDeadline();
      Step(Tick{});
    }
    now_ = end;
  }
  Effects Send(uint64_t stream, const v1::NodeMessage& message) {
    return Step(NodeMessageReceived{StreamId{stream}, message});
  }
  Effects Join(uint64_t stream, const v1::JobSpec& spec, const std::string& node,
               uint32_t slots = 1, uint64_t incarnation = 1) {
    return Send(stream, JoinFrom({spec.name(), node, incarnation, 0}, spec, slots));
  }
  void Pass(absl::Duration duration) { now_ = now_ + duration; }
  // Steps like a host that steps whenever a step is due.
  void Elapse(absl::Duration duration) {
    const MonoTime end = now_ + duration;
    while (now_ < end) {
      now_ = std::min(end, std::max(core_.NextDeadline(), now_ + absl::Microseconds(1)));
      Step(Tick{});
    }
  }

  static absl::StatusCode ClosedWith(const Effects& effects) {
    return effects.close.size() == 1 ? effects.close[0].status.code() : absl::StatusCode::kUnknown;
  }
  static bool Has(const Effects& effects, v1::ServerMessage::BodyCase body) {
    for (const SendToStream& send : effects.send) {
      if (send.message.body_case() == body) return true;
    }
    return false;
  }

  Core core_{CoreConfig()};
  MonoTime now_ = MonoTime::FromMicros(1000000);
  size_t records_ = 0;
  size_t messages_ = 0;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_CORE_RIG_H_
