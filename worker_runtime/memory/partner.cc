#include "worker_runtime/memory/partner.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/communicator.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/sockets/meeting.h"

namespace cadre::memory {
namespace {

// All ranks save in the same steps. A rank that does not come delays the others by this at most.
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
  AwaitSent();
  absl::MutexLock lock(&mutex_);
  job_ = Job{label, std::move(path)};
}

void Partner::AwaitSent() {
  absl::MutexLock lock(&mutex_);
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !job_.has_value() && !is_sending_;
  };
  // The wait always ends, because everything that the sending thread does has a deadline.
  mutex_.Await(absl::Condition(&settled));
}

Status Partner::TakeProblem() {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(is_reported_, true)) return OkStatus();
  return last_;
}

std::optional<Neighbours> Partner::neighbours() {
  absl::MutexLock lock(&mutex_);
  return neighbours_;
}

Status Partner::CheckNotStopped() {
  absl::MutexLock lock(&mutex_);
  return stopping_ ? AbortedError("the checkpoint in memory was destroyed") : OkStatus();
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
  // An error that persists is reported only when it begins.
  if (status.code() != last_.code()) is_reported_ = status.ok();
  last_ = status;
}

Status Partner::Connect() {
  const Waiting waiting = {MonoNow() + timeout_, [this] { return CheckNotStopped(); }};
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
      keepers_.emplace_back(
          [this, sender, opening, waiting] { ReceiveCopies(sender, opening, waiting); });
    }
  } catch (const std::system_error& error) {
    return ResourceExhaustedError(absl::StrCat(
        "rank ", rank, " cannot start a thread for a partner's copies: ", error.what()));
  }
  ASSIGN_OR_RETURN(wire::Connection connection,
                   MeetPartner(worker_, rank, found.keeper, opening, waiting));
  to_keeper_ = std::make_shared<PartnerLink>(std::move(connection), rank, found.keeper);
  return Add(to_keeper_) ? OkStatus() : CheckNotStopped();
}

void Partner::ReceiveCopies(int sender, int64_t opening, const Waiting& waiting) {
  Result<wire::Connection> connection =
      MeetPartner(worker_, sender, worker_.rank(), opening, waiting);
  // The sending rank reports the error.
  if (!connection.ok()) return;
  const auto link = std::make_shared<PartnerLink>(*std::move(connection), worker_.rank(), sender);
  MemorySlots slots(directory_, CopyName(sender), kSlotsOfACopy);
  Status status = Add(link) ? OkStatus() : CheckNotStopped();
  while (status.ok()) status = link->Receive(slots);
  // Stops the link so that the sender does not wait for a receiver that has ended.
  link->Stop();
}

Status Partner::SendOne(const Job& job) {
  RETURN_IF_ERROR(link_status_);
  ASSIGN_OR_RETURN(const MappedFile file, MapState(job.path, job.label.bytes));
  const Status status = to_keeper_->Send(job.label, file.data() + kStateOffset);
  if (status.code() != StatusCode::kResourceExhausted) link_status_ = status;
  return status;
}

namespace {

// Each chunk must be transferred within the link's timeout.
constexpr size_t kChunkBytes = size_t{4} << 20;

enum Tag { kAnnounce = 1, kAnswer, kChunk };

// The announcement has step, generation, world size and bytes.
using Announcement = std::array<int64_t, 4>;

template <typename Numbers>
Buffer BufferOf(Numbers& numbers) {
  return {numbers.data(), numbers.size(), DataType::kInt64};
}

}  // namespace

PartnerLink::PartnerLink(wire::Connection connection, int own_rank, int peer,
                         std::chrono::nanoseconds timeout)
    : connection_(std::move(connection)),
      peer_(peer),
      timeout_(timeout),
      channel_(connection_, own_rank, peer) {}

void PartnerLink::Stop() { shutdown(connection_.fd(), SHUT_RDWR); }

MonoTime PartnerLink::Deadline() const { return MonoNow() + timeout_; }

Status PartnerLink::Send(const SlotLabel& label, const char* state) {
  Announcement announcement = {label.step, static_cast<int64_t>(label.generation), label.world_size,
                               static_cast<int64_t>(label.bytes)};
  RETURN_IF_ERROR(channel_.Send(BufferOf(announcement), kAnnounce, Deadline()));
  ASSIGN_OR_RETURN(StatusCode answer, ReceiveAnswer());
  for (size_t done = 0; answer == StatusCode::kOk && done < label.bytes; done += kChunkBytes) {
    // The const_cast is safe: the channel only reads what it sends.
    const Buffer chunk = {const_cast<char*>(state) + done,
                          std::min(kChunkBytes, label.bytes - done), DataType::kUint8};
    RETURN_IF_ERROR(channel_.Send(chunk, kChunk, Deadline()));
  }
  if (answer == StatusCode::kOk) {
    ASSIGN_OR_RETURN(answer, ReceiveAnswer());
  }
  if (answer == StatusCode::kOk) return OkStatus();
  return ResourceExhaustedError(absl::StrCat(
      "rank ", peer_, " on the partner node has no memory for a copy of ", label.bytes, " bytes"));
}

Status PartnerLink::Receive(MemorySlots& slots) {
  Announcement announcement = {};
  RETURN_IF_ERROR(channel_.Receive(BufferOf(announcement), kAnnounce, MonoTime::Never()));
  const auto [step, generation, world_size, size] = announcement;
  const size_t bytes = static_cast<size_t>(size);
  const auto room = slots.Begin(bytes);
  RETURN_IF_ERROR(Answer(room.ok() ? StatusCode::kOk : StatusCode::kResourceExhausted));
  if (!room.ok()) return OkStatus();
  for (size_t done = 0; done < bytes; done += kChunkBytes) {
    const Buffer chunk = {*room + done, std::min(kChunkBytes, bytes - done), DataType::kUint8};
    RETURN_IF_ERROR(channel_.Receive(chunk, kChunk, Deadline()));
  }
  const auto committed =
      slots.Commit(step, static_cast<uint64_t>(generation), static_cast<int>(world_size));
  return Answer(committed.ok() ? StatusCode::kOk : StatusCode::kResourceExhausted);
}

Status PartnerLink::Answer(StatusCode code) {
  std::array<int64_t, 1> answer = {static_cast<int64_t>(code)};
  return channel_.Send(BufferOf(answer), kAnswer, Deadline());
}

Result<StatusCode> PartnerLink::ReceiveAnswer() {
  std::array<int64_t, 1> answer = {};
  RETURN_IF_ERROR(channel_.Receive(BufferOf(answer), kAnswer, Deadline()));
  return static_cast<StatusCode>(answer[0]);
}

namespace {

constexpr absl::Duration kSlice = absl::Seconds(1);

Result<std::string> Await(Worker& worker, const std::string& key, const Waiting& waiting) {
  while (true) {
    RETURN_IF_ERROR(waiting.check());
    const absl::Duration left = waiting.deadline - MonoNow();
    const absl::Duration slice = std::clamp(left, absl::ZeroDuration(), kSlice);
    Result<std::string> value = worker.Get(key, absl::ToChronoNanoseconds(slice));
    const bool is_late = value.status().code() == StatusCode::kDeadlineExceeded ||
                         value.status().code() == StatusCode::kNotFound;
    if (!is_late || left <= kSlice) return value;
  }
}

std::string SizeKey(int node) { return absl::StrCat("memory/ranks of node/", node); }

Result<int> SizeOfNode(Worker& worker, int node, const Waiting& waiting) {
  ASSIGN_OR_RETURN(const std::string text, Await(worker, SizeKey(node), waiting));
  int size = 0;
  if (!absl::SimpleAtoi(text, &size) || size < 1) {
    return InternalError(absl::StrCat("'", text, "', which the store holds for node ", node,
                                      ", is no number of ranks"));
  }
  return size;
}

}  // namespace

Result<Neighbours> FindNeighbours(Worker& worker, const Waiting& waiting) {
  const WorkerPlace& place = worker.place();
  if (place.local_rank == 0) {
    RETURN_IF_ERROR(worker.Set(SizeKey(place.node_rank), absl::StrCat(place.local_world_size)));
  }
  const int next = (place.node_rank + 1) % place.nodes;
  const int previous = (place.node_rank + place.nodes - 1) % place.nodes;
  ASSIGN_OR_RETURN(const int next_size, SizeOfNode(worker, next, waiting));
  ASSIGN_OR_RETURN(const int previous_size, SizeOfNode(worker, previous, waiting));
  return NeighboursOf(place, next_size, previous_size);
}

Result<wire::Connection> MeetPartner(Worker& worker, int sender, int keeper, int64_t opening,
                                     const Waiting& waiting) {
  const bool is_sender = worker.rank() == sender;
  const sockets::PairMeeting pair = {
      absl::StrCat("memory/partner/", sender, "/", opening), is_sender ? 1 : 0, waiting.deadline,
      waiting.check, [&](const std::string& key) { return Await(worker, key, waiting); }};
  Result<wire::Connection> connection = sockets::MeetPair(worker, pair);
  if (connection.ok()) return connection;
  return Status(connection.status().code(), absl::StrCat("rank ", is_sender ? keeper : sender,
                                                         " of the partner node did not connect: ",
                                                         connection.status().message()));
}

Neighbours NeighboursOf(const WorkerPlace& place, int next_size, int previous_size) {
  const int first = place.rank - place.local_rank;
  const bool is_last = place.node_rank + 1 == place.nodes;
  const int first_of_next = is_last ? 0 : first + place.local_world_size;
  Neighbours neighbours;
  neighbours.keeper = first_of_next + place.local_rank % next_size;
  neighbours.first_kept = (place.node_rank == 0 ? place.world_size : first) - previous_size;
  neighbours.kept_count = previous_size;
  for (int local = place.local_rank; local < previous_size; local += place.local_world_size) {
    neighbours.kept.push_back(neighbours.first_kept + local);
  }
  return neighbours;
}

}  // namespace cadre::memory
