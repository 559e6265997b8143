#include "worker_runtime/memory/partner.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/mapped_file.h"
#include "worker_runtime/memory/files/rank_files.h"

namespace cadre::memory {
namespace {

// All ranks save in the same steps. One that does not come holds the others up only so long.
constexpr std::chrono::nanoseconds kConnectPatience = std::chrono::minutes(1);

}  // namespace

Partner::Partner(Worker& worker, std::string directory, std::chrono::nanoseconds timeout)
    : worker_(worker),
      directory_(std::move(directory)),
      timeout_(std::min(timeout, kConnectPatience)),
      thread_([this] { Run(); }) {}

Partner::~Partner() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (const auto& link : links_) link->Stop();
  }
  thread_.join();
  for (std::thread& keeper : keepers_) keeper.join();
}

void Partner::Send(const SlotLabel& label, std::string path) {
  Settle();
  absl::MutexLock lock(&mutex_);
  job_ = Job{label, std::move(path)};
}

void Partner::Settle() {
  absl::MutexLock lock(&mutex_);
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !job_.has_value() && !is_sending_;
  };
  // It ends in any case: whatever the sending thread does has a deadline.
  mutex_.Await(absl::Condition(&settled));
}

Status Partner::TakeProblem() {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(is_said_, true)) return OkStatus();
  return last_;
}

std::optional<Neighbours> Partner::neighbours() {
  absl::MutexLock lock(&mutex_);
  return neighbours_;
}

Status Partner::CheckGoesOn() {
  absl::MutexLock lock(&mutex_);
  return stopping_ ? AbortedError("no partner is needed any more") : OkStatus();
}

bool Partner::Add(const std::shared_ptr<PartnerLink>& link) {
  absl::MutexLock lock(&mutex_);
  links_.push_back(link);
  return !stopping_;
}

void Partner::Run() {
  link_status_ = Connect();
  while (const std::optional<Job> job = NextJob()) EndSend(SendOne(*job));
}

std::optional<Partner::Job> Partner::NextJob() {
  absl::MutexLock lock(&mutex_);
  const auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || job_.has_value();
  };
  mutex_.Await(absl::Condition(&something));
  if (stopping_) {
    job_.reset();
    return std::nullopt;
  }
  is_sending_ = true;
  return std::exchange(job_, std::nullopt);
}

void Partner::EndSend(const Status& status) {
  absl::MutexLock lock(&mutex_);
  is_sending_ = false;
  // A problem that stays is said when it begins.
  if (status.code() != last_.code()) is_said_ = status.ok();
  last_ = status;
}

Status Partner::Connect() {
  const Waiting waiting = {MonoNow() + timeout_, [this] { return CheckGoesOn(); }};
  const int rank = worker_.rank();
  ASSIGN_OR_RETURN(const int64_t opening,
                   worker_.Add(absl::StrCat("memory/partner/opened/", rank), 1));
  ASSIGN_OR_RETURN(const Neighbours found, FindNeighbours(worker_, waiting));
  {
    absl::MutexLock lock(&mutex_);
    neighbours_ = found;
  }
  try {
    for (const int sender : found.kept) {
      keepers_.emplace_back([this, sender, opening, waiting] { Keep(sender, opening, waiting); });
    }
  } catch (const std::system_error& error) {
    return ResourceExhaustedError(absl::StrCat("no thread for a partner's copies: ", error.what()));
  }
  ASSIGN_OR_RETURN(wire::Connection connection,
                   MeetPartner(worker_, rank, found.keeper, opening, waiting));
  to_keeper_ = std::make_shared<PartnerLink>(std::move(connection), rank, found.keeper);
  return Add(to_keeper_) ? OkStatus() : CheckGoesOn();
}

void Partner::Keep(int sender, int64_t opening, const Waiting& waiting) {
  Result<wire::Connection> connection =
      MeetPartner(worker_, sender, worker_.rank(), opening, waiting);
  // The one who sends says why.
  if (!connection.ok()) return;
  const auto link = std::make_shared<PartnerLink>(*std::move(connection), worker_.rank(), sender);
  MemorySlots slots(directory_, CopyName(sender), kSlotsOfACopy);
  Status status = Add(link) ? OkStatus() : CheckGoesOn();
  while (status.ok()) status = link->Receive(slots);
  // So that the sender does not wait for what nobody takes.
  link->Stop();
}

Status Partner::SendOne(const Job& job) {
  RETURN_IF_ERROR(link_status_);
  ASSIGN_OR_RETURN(const MappedFile file, MapState(job.path, job.label.bytes));
  const Status status = to_keeper_->Send(job.label, file.data() + kStateOffset);
  if (status.code() != StatusCode::kResourceExhausted) link_status_ = status;
  return status;
}

}  // namespace cadre::memory
