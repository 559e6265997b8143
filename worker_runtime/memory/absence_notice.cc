#include "worker_runtime/memory/absence_notice.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/text.h"

namespace cadre::memory {
namespace {

std::string KeyOf(const std::string& call, int rank) { return absl::StrCat(call, "/", rank); }

}  // namespace

std::string AbsentRanks(Worker& worker, const std::string& call) {
  std::vector<std::string> first;
  size_t total = 0;
  for (int rank = 0; rank < worker.world_size(); ++rank) {
    if (rank == worker.rank()) continue;
    if (worker.Get(KeyOf(call, rank), std::chrono::nanoseconds(0)).ok()) {
      // So that one rank asks for all, and the others for the few before the first.
      if (rank < worker.rank()) return "";
      continue;
    }
    ++total;
    if (first.size() < kFirstFew) first.push_back(absl::StrCat(rank));
  }
  if (total == 0) return "";
  return absl::StrCat(total == 1 ? "rank " : "ranks ", FirstFew(first, total));
}

AbsenceNotice::AbsenceNotice(Worker& worker, const std::string& call, AbsenceNoticeOptions options)
    : worker_(worker), call_(call), options_(std::move(options)) {
  if (worker.world_size() == 1) return;
  if (!worker.Set(KeyOf(call, worker.rank()), "here").ok()) return;
  watching_ = std::thread([this] { Watch(); });
}

AbsenceNotice::~AbsenceNotice() {
  over_.Notify();
  if (watching_.joinable()) watching_.join();
}

void AbsenceNotice::Watch() {
  std::chrono::milliseconds wait = options_.first;
  while (!over_.WaitForNotificationWithTimeout(absl::FromChrono(wait))) {
    const std::string absent = AbsentRanks(worker_, call_);
    // All may have come meanwhile.
    if (!absent.empty() && !over_.HasBeenNotified()) options_.say(absent);
    wait = options_.every;
  }
}

}  // namespace cadre::memory
