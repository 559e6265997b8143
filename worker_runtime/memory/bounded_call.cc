#include "worker_runtime/memory/bounded_call.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/steady_wait.h"
#include "cadre/status.h"

namespace cadre::memory {

BoundedCall::~BoundedCall() {
  if (thread_.joinable()) thread_.join();
}

bool BoundedCall::is_late() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_late_;
}

Result<std::string> BoundedCall::Make(Call call) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_running_) return DeadlineExceededError("the call before has not ended");
  // It has ended, and needs the lock no more.
  if (thread_.joinable()) thread_.join();
  const absl::Duration patience = is_late_ ? absl::ZeroDuration() : patience_;
  is_running_ = true;
  try {
    thread_ = std::thread([this, call = std::move(call)] {
      const MonoTime begin = MonoNow();
      Result<std::string> answer = call();
      const std::lock_guard<std::mutex> done(mutex_);
      answer_ = std::move(answer);
      is_late_ = MonoNow() - begin > patience_;
      is_running_ = false;
      ended_.notify_all();
    });
  } catch (const std::system_error& error) {
    is_running_ = false;
    return ResourceExhaustedError(absl::StrCat("no thread: ", error.what()));
  }
  if (WaitFor(ended_, lock, patience, [this] { return !is_running_; })) return answer_;
  is_late_ = true;
  return DeadlineExceededError("the call has not ended yet");
}

}  // namespace cadre::memory
