#include "rendezvous/cluster/rests.h"

#include <algorithm>

#include "absl/time/time.h"

namespace cadre::cluster {
namespace {

constexpr absl::Duration kShortest = absl::Seconds(1);
constexpr absl::Duration kLongest = absl::Minutes(1);

absl::Duration RestAfter(uint32_t failed_starts) {
  absl::Duration rest = kShortest;
  for (uint32_t i = 1; i < failed_starts && rest < kLongest; ++i) rest *= 2;
  return std::min(rest, kLongest);
}

}  // namespace

void Rests::Add(uint64_t submission, const std::string& node, uint32_t failed_starts,
                MonoTime now) {
  rests_.emplace(now + RestAfter(failed_starts), submission, node);
}

bool Rests::EndDue(MonoTime now) {
  bool any = false;
  while (NextDeadline() <= now) {
    rests_.erase(rests_.begin());
    any = true;
  }
  return any;
}

MonoTime Rests::NextDeadline() const {
  return rests_.empty() ? MonoTime::Never() : std::get<0>(*rests_.begin());
}

std::map<uint64_t, std::set<std::string>> Rests::ByJob() const {
  std::map<uint64_t, std::set<std::string>> by_job;
  for (const auto& [until, submission, node] : rests_) by_job[submission].insert(node);
  return by_job;
}

}  // namespace cadre::cluster
