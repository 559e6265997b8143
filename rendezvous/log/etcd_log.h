// The record log in etcd, for several servers of which one is the leader. One thread.
//
//   PREFIX/head      EtcdLogHead: which pieces are valid
//   PREFIX/log/N     EtcdLogPiece: the N-th (hexadecimal) of the pieces that batches are cut into
//   PREFIX/leader    see etcd_leadership.h
//
// Each write is one transaction with two guards: the leader key's create revision, so that only the
// leader writes, and the head's revision, which every write changes, so that a write whose answer
// was lost cannot take effect after a later one. A batch is valid from the transaction that moves
// the head past its last piece. So each request stays far below etcd's limits of 1.5 MiB and 128
// operations, whatever the size of a batch.
#ifndef CADRE_RENDEZVOUS_LOG_ETCD_LOG_H_
#define CADRE_RENDEZVOUS_LOG_ETCD_LOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/log/etcd_client.h"
#include "rendezvous/log/record_log.h"

namespace cadre::log {

// A log smaller than this is not compacted.
inline constexpr uint64_t kEtcdCompactionBytesMin = 4 << 20;

struct EtcdLogOptions {
  std::shared_ptr<EtcdClient> client;
  std::string prefix;
  // The leadership under which this log writes.
  std::string leader_key;
  int64_t leader_revision = 0;
  // Called when Append or Compact finds that the leadership has ended; from then on both fail.
  std::function<void(absl::Status)> on_deposed;
  // Used for a new log.
  uint64_t new_server_id = 1;
  ClockBase clock;
  // The part of a batch that one key holds.
  size_t piece_bytes_max = 1 << 20;
};

// Errors are one line that names the prefix and says what to do:
//   FAILED_PRECONDITION  the state has another format
//   DATA_LOSS            the state is damaged
//   ABORTED              another server leads
//   and as EtcdClient's
absl::StatusOr<OpenedLog> OpenEtcdLog(const EtcdLogOptions& options);

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_ETCD_LOG_H_
