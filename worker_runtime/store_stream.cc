#include "worker_runtime/store_stream.h"

#include <algorithm>
#include <utility>

#include "proto/channel_arguments.h"

namespace cadre {
namespace {

gpr_timespec ToGpr(std::chrono::steady_clock::duration from_now) {
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(from_now).count();
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(std::max<int64_t>(us, 0), GPR_TIMESPAN));
}

}  // namespace

StoreStream::StoreStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& token)
    : token_(token), stub_(v1::LocalStore::NewStub(channel)) {}

StoreStream::~StoreStream() {
  if (context_ != nullptr) context_->TryCancel();
  void* tag = nullptr;
  bool ok = false;
  for (; under_way_ > 0 && queue_.Next(&tag, &ok); --under_way_) {
  }
  stream_.reset();
  context_.reset();
  queue_.Shutdown();
  while (queue_.Next(&tag, &ok)) {
  }
}

grpc::Status StoreStream::Execute(const v1::StoreRequest& request, absl::Duration limit,
                                  v1::StoreReply* reply) {
  const Clock::time_point deadline = Clock::now() + absl::ToChronoMicroseconds(limit);
  std::unique_lock<std::mutex> lock(mutex_);
  Waiter self{reply, std::nullopt, {}};
  waiters_.emplace(request.request_id(), &self);
  outbox_.push_back(request);
  if (stream_ == nullptr) {
    Open();
  } else {
    WriteNext();
  }
  while (!self.end.has_value() && Clock::now() < deadline) {
    if (somebody_reads_) {
      self.woken.wait_until(lock, deadline);
    } else {
      ReadFor(deadline, &lock);
    }
  }
  if (!self.end.has_value()) GiveUp(request.request_id());
  PassOn();
  return self.end.value_or(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"));
}

void* StoreStream::Begin(Tag tag) {
  ++under_way_;
  return reinterpret_cast<void*>(tag);
}

void StoreStream::Open() {
  context_ = std::make_unique<grpc::ClientContext>();
  if (!token_.empty()) context_->AddMetadata(kTokenMetadata, token_);
  stream_ = stub_->PrepareAsyncConverse(context_.get(), &queue_);
  stream_->StartCall(Begin(kStarted));
}

void StoreStream::ReadFor(Clock::time_point deadline, std::unique_lock<std::mutex>* lock) {
  somebody_reads_ = true;
  lock->unlock();
  void* tag = nullptr;
  bool ok = false;
  const auto got = queue_.AsyncNext(&tag, &ok, ToGpr(deadline - Clock::now()));
  lock->lock();
  somebody_reads_ = false;
  if (got != grpc::CompletionQueue::GOT_EVENT) return;
  --under_way_;
  Handle(static_cast<Tag>(reinterpret_cast<intptr_t>(tag)), ok);
}

void StoreStream::Handle(Tag tag, bool ok) {
  switch (tag) {
    case kStarted:
      started_ = ok;
      if (ok) stream_->Read(&incoming_, Begin(kRead));
      break;
    case kRead:
      if (!ok) break;
      Answer();
      stream_->Read(&incoming_, Begin(kRead));
      break;
    case kWritten:
      writing_ = false;
      break;
    case kFinished:
      finished_ = true;
      break;
  }
  if (!ok) End();
  WriteNext();
  if (finished_ && under_way_ == 0) Close();
}

void StoreStream::WriteNext() {
  if (!started_ || writing_ || ending_ || outbox_.empty()) return;
  writing_ = true;
  stream_->Write(outbox_.front(), Begin(kWritten));
  outbox_.pop_front();
}

void StoreStream::Answer() {
  const auto found = waiters_.find(incoming_.request_id());
  // One that had no time left.
  if (found == waiters_.end()) return;
  Waiter& waiter = *found->second;
  *waiter.reply = std::move(incoming_);
  waiter.end = grpc::Status::OK;
  waiter.woken.notify_one();
  waiters_.erase(found);
}

// Asks how it has ended.
void StoreStream::End() {
  if (ending_) return;
  ending_ = true;
  stream_->Finish(&status_, Begin(kFinished));
}

void StoreStream::Close() {
  stream_.reset();
  context_.reset();
  started_ = writing_ = ending_ = finished_ = false;
  outbox_.clear();
  const grpc::Status why =
      status_.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the agent has ended the stream")
                   : status_;
  for (const auto& [id, waiter] : waiters_) {
    waiter->end = why;
    waiter->woken.notify_one();
  }
  waiters_.clear();
}

void StoreStream::PassOn() {
  if (!somebody_reads_ && !waiters_.empty()) waiters_.begin()->second->woken.notify_one();
}

void StoreStream::GiveUp(uint64_t request_id) {
  waiters_.erase(request_id);
  outbox_.erase(std::remove_if(outbox_.begin(), outbox_.end(),
                               [&](const v1::StoreRequest& request) {
                                 return request.request_id() == request_id;
                               }),
                outbox_.end());
}

}  // namespace cadre
