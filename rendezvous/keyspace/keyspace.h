// The store of one job's current generation: keys, barriers and communicator ids, and those who
// wait for them. Pure; one thread.
//
// What is stored is durable and lives in StoredKeys, with what the operations that changed it
// answered: such an operation returns the record. Waiters, barrier arrivals and the answers of
// operations that changed nothing are volatile and live here.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_KEYSPACE_H_
#define CADRE_RENDEZVOUS_KEYSPACE_KEYSPACE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/record.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/core/event.h"
#include "rendezvous/keyspace/answers.h"
#include "rendezvous/state/state.h"

namespace cadre {

constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxValueBytes = 64 << 10;
// Keys and communicator ids of one generation, together.
constexpr size_t kMaxKeys = 65536;
constexpr size_t kMaxStoreBytes = size_t{256} << 20;
constexpr size_t kMaxWaiters = 65536;
constexpr uint32_t kMaxWaitMs = 3600 * 1000;
constexpr size_t kMaxReplyMessageBytes = 1024;
// Calls that repeat one waiting request.
constexpr size_t kMaxAskersPerWaiter = 8;

// Who waits for an answer: a unary call, or a node on its stream.
struct Asker {
  std::optional<CallId> call;
  std::string node;  // when there is no call
  friend bool operator==(const Asker& a, const Asker& b) {
    return a.call == b.call && a.node == b.node;
  }
};

struct StoreAnswerTo {
  Asker asker;
  v1::StoreReply reply;
};

struct StoreOutcome {
  // At most one; its `job` is not set.
  std::optional<v1::Record> append;
  std::vector<StoreAnswerTo> answers;
};

// The answer to a request, still without content.
v1::StoreReply ReplyTo(uint64_t client, uint64_t request_id);
v1::StoreReply ErrorReply(const v1::StoreRequest& request, absl::StatusCode code,
                          absl::string_view message);

class Keyspace {
 public:
  // One operation on the current generation, of `world_size` ranks.
  StoreOutcome Execute(MonoTime now, const StoredKeys& stored, uint32_t world_size,
                       const Asker& asker, const v1::StoreRequest& request);

  // Answers those whose time has run out.
  std::vector<StoreAnswerTo> Expire(MonoTime now);
  MonoTime NextDeadline() const;

  // The generation is over: everybody who waits is answered, everything is forgotten.
  std::vector<StoreAnswerTo> End(absl::StatusCode code, absl::string_view message);

  // Nobody is there any more to receive the answer.
  void ForgetCall(CallId call);
  void ForgetNode(const std::string& node);

  size_t waiters() const { return waiters_.size(); }
  size_t answers() const { return answers_.size(); }
  absl::Status CheckInvariants() const;

 private:
  using RequestKey = std::pair<uint64_t, uint64_t>;  // client, request id
  enum class WaitsFor { kKey, kId, kBarrier };
  struct Waiter {
    WaitsFor what = WaitsFor::kKey;
    std::string name;
    RequestKey request;
    int32_t rank = 0;
    MonoTime deadline;
    std::vector<Asker> askers;
  };
  struct Barrier {
    uint32_t size = 0;
    uint32_t world_size = 0;
    // Who waits, by rank; a rank counts once.
    std::map<int32_t, std::set<uint64_t>> arrived;
  };
  struct Operation;  // one Execute's arguments

  void Set(const Operation& op, const std::string& key, const std::string& value);
  void Add(const Operation& op);
  void CompareAndSet(const Operation& op);
  void Delete(const Operation& op);
  void Get(const Operation& op, WaitsFor what, const std::string& name,
           const std::map<std::string, std::string>& from);
  void PublishId(const Operation& op);
  void EnterBarrier(const Operation& op);
  void CompleteBarrier(const Operation& op, const std::string& name);

  // False, with the answer given, when the key or the value may not be written.
  bool MayWrite(const Operation& op, const std::string& key, size_t value_bytes);
  void WriteKey(const Operation& op, const std::string& key, const std::string& value);
  void Reply(const Operation& op, v1::StoreReply reply);
  void Fail(const Operation& op, absl::StatusCode code, absl::string_view message);
  // False, with the answer given, when there is no room.
  bool Wait(const Operation& op, WaitsFor what, const std::string& name);
  void Wake(WaitsFor what, const std::string& name, const std::string& value,
            StoreOutcome* outcome);
  void AnswerAndForget(uint64_t id, v1::StoreReply reply, std::vector<StoreAnswerTo>* answers);
  void Forget(uint64_t id);
  std::string WhyNotInTime(const Waiter& waiter) const;

  uint64_t next_waiter_ = 1;
  std::map<uint64_t, Waiter> waiters_;
  std::map<RequestKey, uint64_t> by_request_;
  std::map<std::pair<WaitsFor, std::string>, std::set<uint64_t>> by_name_;
  std::set<std::pair<MonoTime, uint64_t>> by_deadline_;
  std::map<CallId, uint64_t> by_call_;
  std::map<std::string, Barrier> barriers_;

  // Of operations that might have changed something, and did not.
  Answers answers_;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_KEYSPACE_KEYSPACE_H_
