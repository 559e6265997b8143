// Connections that have not shown a token yet: how many there may be, and for how long. A stranger
// who opens many, or says nothing on one, takes no place from those who come with a token. Pure;
// one thread at a time.
#ifndef CADRE_RENDEZVOUS_SERVICE_NEWCOMERS_H_
#define CADRE_RENDEZVOUS_SERVICE_NEWCOMERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"

namespace cadre::service {

// A connection's other end: its address, and the port there.
struct Peer {
  std::string address;
  int port = 0;

  bool operator<(const Peer& other) const {
    return std::tie(address, port) < std::tie(other.address, other.port);
  }
  bool operator==(const Peer& other) const {
    return address == other.address && port == other.port;
  }
};

class Newcomers {
 public:
  Newcomers(size_t most, absl::Duration patience) : most_(most), patience_(patience) {}

  size_t size() const { return peers_.size(); }

  // Where there are `most` already, one makes room: see TakeOldestOfTheMost.
  std::optional<Peer> Add(const Peer& peer, MonoTime now);
  // It has shown a token, or is gone. False: it is none.
  bool Remove(const Peer& peer);
  // The oldest of the address that has the most; nullopt: there is none.
  std::optional<Peer> TakeOldestOfTheMost();
  // Those whose time is up.
  std::vector<Peer> TakeOverdue(MonoTime now);
  // When TakeOverdue has something next.
  MonoTime NextDeadline() const;

 private:
  // Those of one address, by their number: the first is the oldest.
  using OfAddress = std::map<uint64_t, Peer>;

  const size_t most_;
  const absl::Duration patience_;
  uint64_t next_number_ = 0;
  std::map<Peer, uint64_t> peers_;
  std::map<std::string, OfAddress> addresses_;
  // How many an address has.
  std::set<std::pair<size_t, std::string>> by_size_;
  // All, in the order in which they came.
  std::map<uint64_t, std::pair<MonoTime, Peer>> by_age_;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_NEWCOMERS_H_
