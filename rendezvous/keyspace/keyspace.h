// Keyspace: a store of keys, barriers and communicator ids, and the requests that wait in it. Pure;
// one thread. The server has one for each job's current generation; under mpirun rank 0 has one for
// its launch.
//
// The content is in StoreContent, with the replies of the operations that changed it: such an
// operation returns the change, which the server records first. Waiters, barrier arrivals and the
// replies of operations that changed nothing are kept here and may be lost.
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
#include "rendezvous/keyspace/store_content.h"
#include "rendezvous/keyspace/store_request.h"

namespace cadre::keyspace {

// Identifies who gets an answer: a call, or a peer that has several requests open and distinguishes
// their answers by the id of the request.
struct Requester {
  uint64_t call = 0;  // 0: a peer
  std::string peer;
  friend bool operator==(const Requester& a, const Requester& b) {
    return a.call == b.call && a.peer == b.peer;
  }
};

struct AddressedReply {
  Requester requester;
  Reply reply;
};

struct Outcome {
  // The caller applies it to the content before it executes anything else and before it sends the
  // answers.
  std::optional<Change> change;
  std::vector<AddressedReply> answers;
};

class Keyspace {
 public:
  // Executes one operation on `stored`, which serves `world_size` ranks. `full` is the reason why
  // writes are refused whatever this store holds; empty if they are allowed.
  Outcome Execute(MonoTime now, const StoreContent& stored, uint32_t world_size,
                  const Requester& requester, Request request, absl::string_view full = "");

  // Answers the requests whose wait has timed out, with DEADLINE_EXCEEDED.
  std::vector<AddressedReply> Expire(MonoTime now);
  MonoTime NextDeadline() const;

  // Closes the store: answers all waiting requests with this error, and drops everything.
  std::vector<AddressedReply> End(absl::StatusCode code, absl::string_view message);

  // Called when the call or peer is gone and can receive no answer any more.
  void ForgetCall(uint64_t call);
  void ForgetPeer(const std::string& peer);

  size_t waiters() const { return waiters_.size(); }
  size_t answers() const { return answers_.size(); }
  absl::Status CheckInvariants() const;

 private:
  using RequestKey = std::pair<uint64_t, uint64_t>;  // client, id
  enum class WaitsFor { kKey, kId, kBarrier };
  struct Waiter {
    WaitsFor what = WaitsFor::kKey;
    std::string name;
    RequestKey request;
    int32_t rank = 0;
    MonoTime deadline;
    std::vector<Requester> requesters;

    // Returns the reply to the request, without content.
    Reply EmptyReply() const {
      Reply reply;
      reply.client = request.first;
      reply.id = request.second;
      return reply;
    }
  };
  struct Barrier {
    uint32_t size = 0;
    uint32_t world_size = 0;
    // The ids of waiters by rank. A rank counts once, however many of its requests wait.
    std::map<int32_t, std::set<uint64_t>> arrived;
  };
  struct Call;  // the arguments of one Execute()

  // Operations that write a key have key and value moved out of them.
  void Do(const Call& call, Set& set);
  void Do(const Call& call, const Get& get);
  void Do(const Call& call, Add& add);
  void Do(const Call& call, CompareAndSet& swap);
  void Do(const Call& call, const Delete& erase);
  void Do(const Call& call, const EnterBarrier& enter);
  void Do(const Call& call, const PublishId& publish);
  void Do(const Call& call, const GetId& get);
  void Read(const Call& call, WaitsFor what, const std::string& name,
            const std::map<std::string, std::string>& from);
  void CompleteBarrier(const Call& call, const std::string& name);

  // Adds the requester to a repeated request that waits already. All its requesters get the answer.
  void AddRequester(const Call& call, uint64_t id);
  // Answers the request and returns false if the key or the value may not be written.
  bool MayWrite(const Call& call, const std::map<std::string, std::string>& to,
                const std::string& key, size_t value_bytes);
  void WriteKey(const Call& call, std::string key, std::string value);
  void Answer(const Call& call, Reply reply);
  void Fail(const Call& call, absl::StatusCode code, absl::string_view message);
  // Answers the request and returns false if too many requests wait already.
  bool Wait(const Call& call, WaitsFor what, const std::string& name);
  void Wake(WaitsFor what, const std::string& name, const std::string& value, Outcome* outcome);
  void AnswerAndForget(uint64_t id, Reply reply, std::vector<AddressedReply>* answers);
  void Forget(uint64_t id);
  std::string TimeoutText(const Waiter& waiter) const;

  uint64_t next_waiter_ = 1;
  std::map<uint64_t, Waiter> waiters_;
  std::map<RequestKey, uint64_t> by_request_;
  std::map<std::pair<WaitsFor, std::string>, std::set<uint64_t>> by_name_;
  std::set<std::pair<MonoTime, uint64_t>> by_deadline_;
  std::map<uint64_t, uint64_t> by_call_;
  std::map<std::string, Barrier> barriers_;

  // Replies of operations that could have changed something and did not.
  ReplyCache answers_;
};

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_KEYSPACE_H_
