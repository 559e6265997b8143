// What an agent's workers may ask about their place: Hello, and, where the job recovers in place,
// AwaitEnd, Rejoin and TakePlace. The loop thread announces and ends generations; calls come on
// gRPC's threads.
#ifndef CADRE_AGENT_LOCAL_WORKER_CALLS_H_
#define CADRE_AGENT_LOCAL_WORKER_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/core/agent_core.h"
#include "proto/local.grpc.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre {

// The token that every call to the agent carries.
bool KnowsToken(const grpc::CallbackServerContext& context, const std::string& token);
grpc::Status WrongToken();

// Thread safe.
class WorkerCalls final : public v1::Local::CallbackService {
 public:
  struct Options {
    std::string job;
    // Address of this node as others reach it.
    std::string address;
    std::string token;
    // Takes WorkerMayRejoin and WorkerWaits; on gRPC's threads, must not block.
    std::function<void(AgentEvent)> on_event;
  };

  explicit WorkerCalls(Options options) : options_(std::move(options)) {}

  // The generation that runs here from now on. Kept workers that wait are told their place, and so
  // are processes that stand by: `places` has the local ranks of those that get one.
  void Begin(uint64_t generation, const v1::Assign& assign, bool in_place,
             const std::set<uint32_t>& kept, const std::map<uint64_t, uint32_t>& places);
  // Whether a process that is started to stand by would wait: workers of the generation have asked
  // for their place as the worker runtime does and, with recovery in place, take part in it.
  bool WouldStandBy() const;
  // Those that wait, by the number that they were given (CADRE_STANDS_BY).
  std::set<uint64_t> StandingBy() const;
  // It is over. Kept workers are told so; the others are told, if they ask, that they are not.
  void End(const std::set<uint32_t>& kept, const std::string& reason);
  // Every call that waits ends with this.
  void FinishAll(const grpc::Status& status);

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context,
                                  const v1::HelloRequest* request, v1::HelloReply* reply) override;
  grpc::ServerUnaryReactor* AwaitEnd(grpc::CallbackServerContext* context,
                                     const v1::HelloRequest* request,
                                     v1::GenerationEnd* reply) override;
  grpc::ServerUnaryReactor* Rejoin(grpc::CallbackServerContext* context,
                                   const v1::RejoinRequest* request,
                                   v1::HelloReply* reply) override;
  grpc::ServerUnaryReactor* TakePlace(grpc::CallbackServerContext* context,
                                      const v1::TakePlaceRequest* request,
                                      v1::HelloReply* reply) override;

 private:
  // A call that waits. Whoever takes it out of `waiting_` finishes it.
  class Call;
  enum class Kind { kAwaitEnd, kRejoin, kStandby };
  using Key = std::pair<Kind, uint64_t>;  // with its local rank, or the standby's number
  struct Finished {
    Call* call;
    grpc::Status status;
  };

  grpc::ServerUnaryReactor* Wait(grpc::CallbackServerContext* context, Call* call,
                                 const v1::HelloRequest& from, AgentEvent (*event)(const Call&));
  // The local rank, or what is wrong with the caller.
  grpc::Status Place(const v1::HelloRequest& from, uint32_t* local_rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fill(uint32_t local_rank, v1::HelloReply* reply) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Call* Take(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dropped(Call* call) ABSL_LOCKS_EXCLUDED(mutex_);
  static void FinishEach(const std::vector<Finished>& finished);

  const Options options_;
  mutable absl::Mutex mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::Assign assign_ ABSL_GUARDED_BY(mutex_);
  bool in_place_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool would_stand_by_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> kept_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, Call*> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre

#endif  // CADRE_AGENT_LOCAL_WORKER_CALLS_H_
