#include "rendezvous/service/newcomers.h"

namespace cadre::service {

std::optional<Peer> Newcomers::Add(const Peer& peer, MonoTime now) {
  // The same port again: the connection before is gone.
  Remove(peer);
  std::optional<Peer> gives_way;
  if (peers_.size() >= most_) gives_way = TakeOldestOfTheMost();
  const uint64_t number = next_number_++;
  peers_[peer] = number;
  by_age_[number] = {now, peer};
  OfAddress& same = addresses_[peer.address];
  by_size_.erase({same.size(), peer.address});
  same[number] = peer;
  by_size_.insert({same.size(), peer.address});
  return gives_way;
}

bool Newcomers::Remove(const Peer& peer) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return false;
  const auto same = addresses_.find(peer.address);
  by_size_.erase({same->second.size(), peer.address});
  same->second.erase(at->second);
  if (same->second.empty()) {
    addresses_.erase(same);
  } else {
    by_size_.insert({same->second.size(), peer.address});
  }
  by_age_.erase(at->second);
  peers_.erase(at);
  return true;
}

std::optional<Peer> Newcomers::TakeOldestOfTheMost() {
  if (by_size_.empty()) return std::nullopt;
  const Peer oldest = addresses_.at(by_size_.rbegin()->second).begin()->second;
  Remove(oldest);
  return oldest;
}

std::vector<Peer> Newcomers::TakeOverdue(MonoTime now) {
  std::vector<Peer> overdue;
  for (const auto& [number, place] : by_age_) {
    if (now < place.first + patience_) break;
    overdue.push_back(place.second);
  }
  for (const Peer& peer : overdue) Remove(peer);
  return overdue;
}

MonoTime Newcomers::NextDeadline() const {
  return by_age_.empty() ? MonoTime::Never() : by_age_.begin()->second.first + patience_;
}

}  // namespace cadre::service
