#include "agent/local/store_calls.h"

#include <iterator>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace cadre::agent {
namespace {

// Puts an operation into a request.
struct PutInto {
  v1::StoreRequest* request;

  void operator()(keyspace::Set& set) const {
    request->mutable_set()->set_key(std::move(set.key));
    request->mutable_set()->set_value(std::move(set.value));
  }
  void operator()(keyspace::Get& get) const { request->mutable_get()->set_key(std::move(get.key)); }
  void operator()(keyspace::Add& add) const {
    request->mutable_add()->set_key(std::move(add.key));
    request->mutable_add()->set_delta(add.delta);
  }
  void operator()(keyspace::CompareAndSet& swap) const {
    v1::CompareAndSetKey* message = request->mutable_compare_and_set();
    message->set_key(std::move(swap.key));
    message->set_expected(std::move(swap.expected));
    message->set_desired(std::move(swap.desired));
  }
  void operator()(keyspace::Delete& erase) const {
    request->mutable_delete_()->set_key(std::move(erase.key));
  }
  void operator()(keyspace::EnterBarrier& enter) const {
    request->mutable_barrier()->set_name(std::move(enter.name));
    request->mutable_barrier()->set_size(enter.size);
  }
  void operator()(keyspace::PublishId& publish) const {
    request->mutable_publish_id()->set_communicator(std::move(publish.communicator));
    request->mutable_publish_id()->set_id(std::move(publish.id));
  }
  void operator()(keyspace::GetId& get) const {
    request->mutable_get_id()->set_communicator(std::move(get.communicator));
  }
};

}  // namespace

std::optional<v1::StoreRequest> StoreCalls::Take(uint64_t connection, uint64_t id,
                                                 rpc::Store call) {
  // An older library does not look at it, and a request that the server cannot parse would be sent
  // again for ever.
  const absl::Status named = IsUtf8(call.job) ? keyspace::CheckName(call.operation)
                                              : absl::InvalidArgumentError("job is not UTF-8");
  if (!named.ok()) {
    send_(connection, rpc::ErrorReply(id, named));
    return std::nullopt;
  }
  if (waiting_.size() >= kMaxStoreCalls) {
    send_(connection, rpc::ErrorReply(id, absl::ResourceExhaustedError(absl::StrCat(
                                              "this agent already has ", kMaxStoreCalls,
                                              " store operations waiting; try again later"))));
    return std::nullopt;
  }
  waiting_.emplace(Key{call.client, id}, connection);
  v1::StoreRequest request;
  request.set_job(std::move(call.job));
  request.set_generation(call.generation);
  request.set_rank(call.rank);
  request.set_client(call.client);
  request.set_request_id(id);
  request.set_wait_ms(call.wait_ms);
  std::visit(PutInto{&request}, call.operation);
  return request;
}

void StoreCalls::Answer(const v1::StoreReply& reply) {
  const auto range = waiting_.equal_range({reply.client(), reply.request_id()});
  if (range.first == range.second) return;
  std::vector<uint64_t> askers;
  for (auto it = range.first; it != range.second; ++it) askers.push_back(it->second);
  waiting_.erase(range.first, range.second);
  const rpc::WorkerReply answer = {reply.request_id(), static_cast<absl::StatusCode>(reply.code()),
                                   reply.message(),
                                   rpc::StoreResult{reply.value(), reply.number()}};
  for (const uint64_t asker : askers) send_(asker, answer);
}

void StoreCalls::Forget(uint64_t connection) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = it->second == connection ? waiting_.erase(it) : std::next(it);
  }
}

}  // namespace cadre::agent
