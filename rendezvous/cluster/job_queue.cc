#include "rendezvous/cluster/job_queue.h"

namespace cadre::cluster {

void JobQueue::Add(const state::Job& job) {
  Remove(job.name());
  if (job.user().empty() || state::HasEnded(job.phase())) return;
  if (job.phase() != v1::QUEUED) {
    begun_.insert(job.name());
    return;
  }
  const Key key{-int64_t{job.saved.spec().priority()}, job.saved.submission().order(), job.name()};
  keys_.emplace(job.name(), key);
  waiting_.insert(key);
}

void JobQueue::Remove(const std::string& name) {
  begun_.erase(name);
  aside_.erase(name);
  const auto key = keys_.find(name);
  if (key == keys_.end()) return;
  waiting_.erase(key->second);
  keys_.erase(key);
}

void JobQueue::SetAside(const std::string& name, const std::string& why, bool rests) {
  const auto key = keys_.find(name);
  if (key == keys_.end()) return;
  waiting_.erase(key->second);
  aside_[name] = {why, rests};
}

const JobQueue::Key* JobQueue::KeyOf(const std::string& name) const {
  const auto found = keys_.find(name);
  return found == keys_.end() ? nullptr : &found->second;
}

std::string* JobQueue::WhyAside(const std::string& name) {
  const auto found = aside_.find(name);
  return found == aside_.end() ? nullptr : &found->second.why;
}

void JobQueue::JudgeAllAnew() {
  for (const auto& [name, aside] : aside_) waiting_.insert(keys_.at(name));
  aside_.clear();
}

void JobQueue::JudgeRestingAnew() {
  for (auto it = aside_.begin(); it != aside_.end();) {
    if (!it->second.rests) {
      ++it;
      continue;
    }
    waiting_.insert(keys_.at(it->first));
    it = aside_.erase(it);
  }
}

}  // namespace cadre::cluster
