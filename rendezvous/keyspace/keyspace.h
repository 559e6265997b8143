// A store: keys, barriers and communicator ids, and those who wait for them. Pure; one thread. The
// server keeps one for each job's current generation, rank 0 under mpirun one for its launch.
//
// What is stored lives in Stored, with the answers of the operations that changed it: such an
// operation returns the change, which the server records first. Waiters, barrier arrivals and the
// answers of operations that changed nothing may be lost and live here.
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
#include "rendezvous/keyspace/answers.h"
#include "rendezvous/keyspace/request.h"
#include "rendezvous/keyspace/stored.h"

namespace cadre::keyspace {

// To whom an answer goes: a call, or a peer that asks many things and tells answers apart by the
// request's id.
struct Asker {
  uint64_t call = 0;  // 0: a peer
  std::string peer;
  friend bool operator==(const Asker& a, const Asker& b) {
    return a.call == b.call && a.peer == b.peer;
  }
};

struct AnswerTo {
  Asker asker;
  Reply reply;
};

struct Outcome {
  // To be applied to what is stored before anything else is executed, and before the answers go.
  std::optional<Change> change;
  std::vector<AnswerTo> answers;
};

class Keyspace {
 public:
  // One operation on what is stored for `world_size` ranks. `full`: why nothing more may be
  // written, whatever is stored here; empty: it may.
  Outcome Execute(MonoTime now, const Stored& stored, uint32_t world_size, const Asker& asker,
                  Request request, absl::string_view full = "");

  // Answers those whose time has run out.
  std::vector<AnswerTo> Expire(MonoTime now);
  MonoTime NextDeadline() const;

  // The store is closed: everybody who waits is answered, everything is forgotten.
  std::vector<AnswerTo> End(absl::StatusCode code, absl::string_view message);

  // Nobody is there any more to receive the answer.
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
    std::vector<Asker> askers;

    // Still without content.
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
    // Who waits, by rank; a rank counts once.
    std::map<int32_t, std::set<uint64_t>> arrived;
  };
  struct Call;  // one Execute's arguments

  // Those that write a key take key and value out of the operation.
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

  // The request waits already; its answer goes to this asker, too.
  void WaitAsWell(const Call& call, uint64_t id);
  // False, with the answer given, when the key or the value may not be written.
  bool MayWrite(const Call& call, const std::map<std::string, std::string>& to,
                const std::string& key, size_t value_bytes);
  void WriteKey(const Call& call, std::string key, std::string value);
  void Answer(const Call& call, Reply reply);
  void Fail(const Call& call, absl::StatusCode code, absl::string_view message);
  // False, with the answer given, when there is no room.
  bool Wait(const Call& call, WaitsFor what, const std::string& name);
  void Wake(WaitsFor what, const std::string& name, const std::string& value, Outcome* outcome);
  void AnswerAndForget(uint64_t id, Reply reply, std::vector<AnswerTo>* answers);
  void Forget(uint64_t id);
  std::string WhyNotInTime(const Waiter& waiter) const;

  uint64_t next_waiter_ = 1;
  std::map<uint64_t, Waiter> waiters_;
  std::map<RequestKey, uint64_t> by_request_;
  std::map<std::pair<WaitsFor, std::string>, std::set<uint64_t>> by_name_;
  std::set<std::pair<MonoTime, uint64_t>> by_deadline_;
  std::map<uint64_t, uint64_t> by_call_;
  std::map<std::string, Barrier> barriers_;

  // Of operations that might have changed something, and did not.
  Answers answers_;
};

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_KEYSPACE_H_
