#include "rendezvous/cluster/agents.h"

#include <iterator>
#include <utility>

namespace cadre::cluster {

const Agent* Agents::Find(const std::string& node) const {
  const auto found = agents_.find(node);
  return found == agents_.end() ? nullptr : &found->second;
}

bool Agents::IsConnected(const std::string& node) const {
  const Agent* agent = Find(node);
  return agent != nullptr && agent->stream.has_value();
}

const std::string* Agents::NodeOf(StreamId stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : &found->second;
}

void Agents::Expect(const std::string& node, MonoTime now) {
  Agent& agent = agents_[node];
  agent.last_heard = now;
  agent.expected = true;
  ++expected_;
  SetTimer(node, now + lease_);
}

void Agents::Connect(const std::string& node, StreamId stream, uint64_t incarnation,
                     const std::set<uint64_t>& runs, MonoTime now) {
  Agent& agent = agents_[node];
  if (agent.stream.has_value()) streams_.erase(*agent.stream);
  streams_[stream] = node;
  expected_ -= std::exchange(agent.expected, false);
  agent.stream = stream;
  agent.incarnation = incarnation;
  agent.last_heard = now;
  agent.leftovers.clear();
  ForgetRemainsBut(node, runs);
  SetTimer(node, now + lease_);
}

void Agents::SetVersion(const std::string& node, const v1::Version& version) {
  agents_.at(node).version = version;
}

void Agents::Disconnect(StreamId stream, MonoTime now) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  const std::string node = found->second;
  streams_.erase(found);
  agents_.at(node).stream.reset();
  agents_.at(node).last_heard = now;
  SetTimer(node, now + lease_);
}

void Agents::Heard(const std::string& node, MonoTime now) { agents_.at(node).last_heard = now; }

void Agents::AddLeftover(const std::string& node, uint64_t part) {
  agents_.at(node).leftovers.insert(part);
}

bool Agents::Remains(const std::string& node, uint64_t part) const {
  const auto found = remains_.find(node);
  return found != remains_.end() && found->second.count(part) != 0;
}

void Agents::AddRemains(const std::string& node, uint64_t part, const std::string& text) {
  remains_[node][part] = text;
}

void Agents::ForgetRemainsBut(const std::string& node, const std::set<uint64_t>& runs) {
  const auto found = remains_.find(node);
  if (found == remains_.end()) return;
  std::map<uint64_t, std::string>& parts = found->second;
  for (auto part = parts.begin(); part != parts.end();) {
    part = runs.count(part->first) != 0 ? std::next(part) : parts.erase(part);
  }
  if (parts.empty()) remains_.erase(found);
}

void Agents::PartEnded(const std::string& node, uint64_t part) {
  agents_.at(node).leftovers.erase(part);
  const auto found = remains_.find(node);
  if (found == remains_.end()) return;
  found->second.erase(part);
  if (found->second.empty()) remains_.erase(found);
}

void Agents::Erase(const std::string& node) {
  remains_.erase(node);
  SetTimer(node, MonoTime::Never());
  const auto found = agents_.find(node);
  expected_ -= found->second.expected;
  if (found->second.stream.has_value()) streams_.erase(*found->second.stream);
  agents_.erase(found);
}

std::optional<std::string> Agents::NextLost(const step::LeaseClock& clock) {
  while (NextDeadline() <= clock.lease_now()) {
    const std::string node = timers_.begin()->second;
    const Agent& agent = agents_.at(node);
    const MonoTime lost = clock.OverAt(agent.last_heard + lease_, !agent.stream.has_value());
    if (lost <= clock.lease_now()) return node;
    // It was heard, or nobody could be let in, or the host was late.
    SetTimer(node, lost);
  }
  return std::nullopt;
}

MonoTime Agents::NextDeadline() const {
  return timers_.empty() ? MonoTime::Never() : timers_.begin()->first;
}

void Agents::AwaitAbsent(MonoTime now) {
  for (auto& [node, agent] : agents_) {
    if (!agent.stream.has_value()) agent.last_heard = now;
  }
}

void Agents::SetTimer(const std::string& node, MonoTime at) {
  Agent& agent = agents_.at(node);
  if (agent.timer != MonoTime::Never()) timers_.erase({agent.timer, node});
  if (at != MonoTime::Never()) timers_.insert({at, node});
  agent.timer = at;
}

}  // namespace cadre::cluster
