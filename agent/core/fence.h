// Strict fencing: until when the workers may run, by the answers of the server. Whoever takes this
// node's place in the job waits for the end of its lease, so the workers must be dead before, by a
// clock that counts the machine's sleep. Pure; one thread.
#ifndef CADRE_AGENT_CORE_FENCE_H_
#define CADRE_AGENT_CORE_FENCE_H_

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "base/time.h"

namespace cadre::agent {

// Until the server names one.
inline constexpr absl::Duration kDefaultLease = absl::Seconds(10);

class Fence {
 public:
  // Workers that were taken over are to be killed at `held_until` unless the server answers.
  Fence(bool strict, MonoTime held_until) : strict_(strict), held_until_(held_until) {}

  // Answers that belong to an earlier connection do not come any more.
  void Connected(MonoTime now);
  void Welcomed(absl::Duration lease);
  // The number of the renewal that is sent now; 0: no answer is needed.
  uint64_t NumberOfRenewal(MonoTime now);
  // False: nobody asked for it.
  bool Answered(uint64_t number);

  // The server's clock went on meanwhile.
  void Slept(absl::Duration duration);

  // When the workers are killed if nothing is answered; Never() without strict fencing.
  MonoTime at() const;
  // How long the server may take for an answer.
  absl::Duration patience() const;

 private:
  const bool strict_;
  MonoTime held_until_;
  absl::Duration lease_ = kDefaultLease;
  MonoTime join_sent_at_;
  // When that was sent which the server has answered last.
  MonoTime confirmed_at_;
  uint64_t renewals_ = 0;
  std::map<uint64_t, MonoTime> unanswered_;  // with when they were sent
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_FENCE_H_
