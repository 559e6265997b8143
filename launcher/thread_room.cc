#include "launcher/thread_room.h"

#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/text.h"

namespace cadre::launcher {

absl::Status CheckThreadRoom(int threads) {
  absl::Notification end;
  std::vector<std::thread> started;
  absl::Status status;
  try {
    for (int i = 0; i < threads; ++i) {
      started.emplace_back([&end] { end.WaitForNotification(); });
    }
  } catch (const std::system_error& refused) {
    status = absl::ResourceExhaustedError(NoThreadRoom(refused.code().value()));
  }
  end.Notify();
  for (std::thread& thread : started) thread.join();
  return status;
}

std::string NoThreadRoom(int error) {
  return absl::StrCat("cannot start a thread: ", ErrnoText(error),
                      "; raise the limit of processes (ulimit -u, or the container's pids.max)");
}

}  // namespace cadre::launcher
