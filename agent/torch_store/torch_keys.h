// The keys, queues and waits of one generation, with the semantics of PyTorch's TCPStore. Pure; one
// thread.
//
// It cannot use rendezvous/keyspace, whose requests have ranks, deadlines and numbers that identify
// repeats, and are durable. Here a client is only known by its connection, waits are for several
// keys and can be cancelled, and keys end with the generation.
#ifndef CADRE_AGENT_TORCH_STORE_TORCH_KEYS_H_
#define CADRE_AGENT_TORCH_STORE_TORCH_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/torch_store/byte_budget.h"
#include "agent/torch_store/torch_request.h"

namespace cadre::agent {

class TorchKeys {
 public:
  // Takes a part of an answer to a connection: `bytes`, followed by the value's text if not null.
  using Answer =
      std::function<void(uint64_t connection, absl::string_view bytes, const SharedText& value)>;

  // `budget` counts what is kept here, among other things.
  TorchKeys(ByteBudget* budget, Answer answer) : budget_(budget), answer_(std::move(answer)) {}
  ~TorchKeys();
  TorchKeys(const TorchKeys&) = delete;
  TorchKeys& operator=(const TorchKeys&) = delete;

  // An error ends the connection; the caller then calls Forget. RESOURCE_EXHAUSTED: there is no
  // room. INVALID_ARGUMENT: the request is invalid. VALIDATE is handled by the server.
  absl::Status Execute(uint64_t connection, TorchRequest request);

  // The connection is closed: ends its wait.
  void Forget(uint64_t connection);
  bool Waits(uint64_t connection) const { return waits_by_connection_.count(connection) != 0; }
  size_t waits() const { return waits_.size(); }

 private:
  struct Wait {
    uint64_t connection = 0;
    // The missing keys; for a barrier the key that identifies it.
    std::set<std::string> keys;
    bool barrier = false;
    size_t bytes = 0;
  };
  // Tickets of waits, in the order in which they began.
  using Tickets = std::set<uint64_t>;

  absl::Status Set(const std::string& key, std::string value);
  absl::Status CompareSet(uint64_t connection, TorchRequest request);
  absl::Status Add(uint64_t connection, const TorchRequest& request);
  absl::Status Append(TorchRequest request);
  absl::Status MultiSet(TorchRequest request);
  absl::Status Push(TorchRequest request);
  void Pop(uint64_t connection, const std::string& key);
  absl::Status Barrier(uint64_t connection, TorchRequest request);
  absl::Status BeginWait(uint64_t connection, std::vector<std::string> keys, bool barrier);
  void ListKeys(uint64_t connection);

  // Computes the number under the key (0 if missing) plus `delta`. INVALID_ARGUMENT: it is not a
  // number.
  absl::Status Increase(const std::string& key, int64_t delta, int64_t* sum);
  bool Exists(const std::string& key) const;
  // Returns null if the key is missing.
  SharedText ValueOf(const std::string& key) const;
  absl::Status CheckRoom(size_t bytes) const;
  // The key exists now: ends the waits for which it was the last missing key. With `only_one` it
  // ends only the first of these. Waits that miss other keys continue for those.
  void Wake(const std::string& key, bool only_one);
  void EndBarrier(const std::string& key);
  void EndWait(uint64_t ticket);

  void AnswerByte(uint64_t connection, uint8_t byte);
  void AnswerNumber(uint64_t connection, int64_t number);
  void AnswerText(uint64_t connection, const SharedText& value);

  ByteBudget* const budget_;
  const Answer answer_;
  absl::flat_hash_map<std::string, std::shared_ptr<CountedText>> keys_;
  absl::flat_hash_map<std::string, std::deque<SharedText>> queues_;
  uint64_t last_ticket_ = 0;
  std::map<uint64_t, Wait> waits_;
  absl::flat_hash_map<uint64_t, uint64_t> waits_by_connection_;
  absl::flat_hash_map<std::string, Tickets> waits_by_key_;
  absl::flat_hash_map<std::string, Tickets> barriers_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_TORCH_KEYS_H_
