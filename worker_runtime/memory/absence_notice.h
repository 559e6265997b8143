// Says which ranks have not come to a call that all ranks make, as long as this one waits there.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_ABSENCE_NOTICE_H_
#define CADRE_WORKER_RUNTIME_MEMORY_ABSENCE_NOTICE_H_

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "cadre/worker.h"

namespace cadre::memory {

// "ranks 1, 3": those that are not in the call. Empty: none, or a rank that is in it and comes
// before this one is to say it.
std::string AbsentRanks(Worker& worker, const std::string& call);

struct AbsenceNoticeOptions {
  std::chrono::milliseconds first = std::chrono::seconds(5);
  std::chrono::milliseconds every = std::chrono::minutes(1);
  // On the notice's thread.
  std::function<void(const std::string& absent)> say;
};

// From its construction to its destruction this rank is in the call named `call`, which is another
// one each time. Where the store fails nothing is said. The worker must outlive it.
class AbsenceNotice {
 public:
  AbsenceNotice(Worker& worker, const std::string& call, AbsenceNoticeOptions options);
  ~AbsenceNotice();
  AbsenceNotice(const AbsenceNotice&) = delete;
  AbsenceNotice& operator=(const AbsenceNotice&) = delete;

 private:
  void Watch();

  Worker& worker_;
  const std::string call_;
  const AbsenceNoticeOptions options_;
  // The destructor's, to the thread.
  absl::Notification over_;
  std::thread watching_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_ABSENCE_NOTICE_H_
