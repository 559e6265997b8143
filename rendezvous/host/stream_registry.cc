#include "rendezvous/host/stream_registry.h"

#include <utility>

#include "rpc/store_reply.h"

namespace cadre::host {

StreamId StreamRegistry::OpenStream(std::shared_ptr<NodeSink> sink) {
  StreamId stream;
  std::optional<absl::Status> ended;
  {
    const absl::MutexLock lock(&mutex_);
    stream.value = ++last_stream_;
    ended = ended_;
    if (!ended.has_value()) streams_[stream] = sink;
  }
  if (ended.has_value()) sink->Close(*ended);
  return stream;
}

void StreamRegistry::IfOpen(StreamId stream, absl::FunctionRef<void()> then) {
  const absl::MutexLock lock(&mutex_);
  if (streams_.count(stream) > 0) then();
}

std::shared_ptr<NodeSink> StreamRegistry::Find(StreamId stream) const {
  const absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

std::shared_ptr<NodeSink> StreamRegistry::Take(StreamId stream, absl::FunctionRef<void()> then) {
  std::shared_ptr<NodeSink> sink;
  const absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  if (found != streams_.end()) {
    sink = std::move(found->second);
    streams_.erase(found);
  }
  then();
  return sink;
}

CallId StreamRegistry::AddCall(const v1::StoreRequest& request, CallDone done) {
  CallId call;
  std::optional<absl::Status> ended;
  {
    const absl::MutexLock lock(&mutex_);
    call.value = ++last_call_;
    ended = ended_;
    if (!ended.has_value()) {
      calls_[call] = {request.client(), request.request_id(), std::move(done)};
    }
  }
  if (ended.has_value()) done(rpc::StoreErrorReply(request, *ended));
  return call;
}

StreamRegistry::CallDone StreamRegistry::TakeCall(CallId call) {
  const absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return nullptr;
  CallDone done = std::move(found->second.done);
  calls_.erase(found);
  return done;
}

void StreamRegistry::EndAll(const absl::Status& why) {
  std::map<StreamId, std::shared_ptr<NodeSink>> streams;
  std::map<CallId, Call> calls;
  {
    const absl::MutexLock lock(&mutex_);
    ended_ = why;
    streams.swap(streams_);
    calls.swap(calls_);
  }
  for (const auto& [id, sink] : streams) sink->Close(why);
  for (const auto& [id, call] : calls) {
    call.done(rpc::StoreErrorReply(call.client, call.request_id, why));
  }
}

std::optional<absl::Status> StreamRegistry::ended() const {
  const absl::MutexLock lock(&mutex_);
  return ended_;
}

size_t StreamRegistry::streams() const {
  const absl::MutexLock lock(&mutex_);
  return streams_.size();
}

size_t StreamRegistry::calls() const {
  const absl::MutexLock lock(&mutex_);
  return calls_.size();
}

}  // namespace cadre::host
