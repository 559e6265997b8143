#include "rendezvous/state/jobs_by_user.h"

namespace cadre::state {

void JobsByUser::Add(const std::string& user, uint64_t ended) {
  Jobs& jobs = users_[user];
  if (ended == 0) {
    ++jobs.live;
  } else {
    jobs.ended.insert(ended);
  }
}

void JobsByUser::Remove(const std::string& user, uint64_t ended) {
  const auto found = users_.find(user);
  if (found == users_.end()) return;
  Jobs& jobs = found->second;
  if (ended != 0) {
    jobs.ended.erase(ended);
  } else if (jobs.live > 0) {
    --jobs.live;
  }
  if (jobs.live == 0 && jobs.ended.empty()) users_.erase(found);
}

void JobsByUser::Grow(const std::string& user, const Bytes& by) {
  for (Bytes* bytes : {&users_[user].bytes, &all_}) {
    bytes->specs += by.specs;
    bytes->stores += by.stores;
  }
}

void JobsByUser::Shrink(const std::string& user, const Bytes& by) {
  for (Bytes* bytes : {&users_[user].bytes, &all_}) {
    bytes->specs -= by.specs;
    bytes->stores -= by.stores;
  }
}

JobsByUser::Bytes JobsByUser::BytesOf(const std::string& user) const {
  const auto found = users_.find(user);
  return found == users_.end() ? Bytes() : found->second.bytes;
}

size_t JobsByUser::Live(const std::string& user) const {
  const auto found = users_.find(user);
  return found == users_.end() ? 0 : found->second.live;
}

uint64_t JobsByUser::NextToForget() const {
  size_t most = 0;
  uint64_t oldest = 0;
  for (const auto& [user, jobs] : users_) {
    if (jobs.ended.empty() || jobs.ended.size() < most) continue;
    if (jobs.ended.size() == most && *jobs.ended.begin() > oldest) continue;
    most = jobs.ended.size();
    oldest = *jobs.ended.begin();
  }
  return oldest;
}

}  // namespace cadre::state
