#include "rendezvous/service/call_threads.h"

#include <algorithm>
#include <utility>

namespace cadre::service {
namespace {

// One for two cores: what it does for a message is less than waking another thread for it. More
// where there are more cores, for TLS handshakes.
constexpr unsigned kThreadsMax = 4;

unsigned ThreadCount() {
  return std::clamp(std::thread::hardware_concurrency() / 2, 1u, kThreadsMax);
}

}  // namespace

CallThreads::CallThreads(std::unique_ptr<grpc::ServerCompletionQueue> queue)
    : queue_(std::move(queue)) {}

CallThreads::~CallThreads() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    all_over_.wait(lock, [this] { return calls_ == 0; });
  }
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  // Operations that are left when the threads never started.
  if (threads_.empty()) Run();
}

void CallThreads::Start() {
  for (unsigned i = 0; i < ThreadCount(); ++i) threads_.emplace_back([this] { Run(); });
}

void CallThreads::Enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_;
}

void CallThreads::Leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--calls_ == 0) all_over_.notify_all();
}

void CallThreads::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Operation*>(tag)->Ended(ok);
}

}  // namespace cadre::service
