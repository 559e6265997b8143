#include "worker_runtime/testing/pretend_gpu/communicator.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "worker_runtime/testing/pretend_gpu/cudart.h"
#include "worker_runtime/testing/pretend_gpu/devices.h"
#include "worker_runtime/testing/pretend_gpu/memory.h"
#include "worker_runtime/testing/pretend_gpu/refusal.h"

namespace cadre::pretend_gpu {
namespace {

using Lock = std::unique_lock<std::mutex>;

// Numbers below this are built-in operations.
constexpr int kFirstFactor = 1000;

// Returns, for example, "HOST/0"; only one rank of a communicator may use it.
std::string NameOfGpu(int device) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const char* const given = getenv("NCCL_HOSTID");
  return std::string(given != nullptr ? given : host) + "/" +
         std::to_string(PhysicalDevice(device));
}

// Returns a file name for a communicator's children, the same on all their ranks.
std::string ChildId(const std::string& parent, const std::string& which) {
  const std::string text = parent + "/" + which;
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return parent.substr(0, parent.find('.')) + "." + std::to_string(hash);
}

std::string WhyCudaFails(cudaError_t error) {
  return std::string("Cuda failure '") + cudaGetErrorString(error) + "'";
}

}  // namespace

Communicator::Communicator(const Place& place)
    : place_(place),
      board_(place.id, place.rank, place.size, ended_.get()),
      stream_meeting_(board_, Meeting::Place::kStream),
      host_meeting_(board_, Meeting::Place::kHost) {}

ncclResult_t Communicator::state(std::string* text) const {
  const Lock lock(mutex_);
  *text = text_;
  return state_;
}

ncclResult_t Communicator::Run(bool blocking, Task task) {
  {
    const Lock lock(mutex_);
    state_ = ncclInProgress;
    task_runs_ = true;
  }
  std::thread([self = shared_from_this(), task = std::move(task)] {
    std::string text;
    const ncclResult_t result = task(&text);
    const Lock lock(self->mutex_);
    self->state_ = result;
    self->text_ = text;
    self->task_runs_ = false;
    self->changed_.notify_all();
  }).detach();
  if (!blocking) return ncclInProgress;
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !task_runs_; });
  return state_ == ncclSuccess ? state_ : Refuse(state_, text_);
}

ncclResult_t Communicator::Join() {
  return Run(place_.blocking, [this](std::string* text) { return Meet(text); });
}

ncclResult_t Communicator::Meet(std::string* text) {
  const cudaError_t error = WhyNothingWorks();
  if (error != cudaSuccess) {
    *text = WhyCudaFails(error);
    return ncclUnhandledCudaError;
  }
  *text = board_.Open();
  if (!text->empty()) return ncclInvalidUsage;
  std::vector<std::string> gpus;
  const Failure failure = board_.Arrive(NameOfGpu(place_.device), &gpus);
  if (!failure.ok()) {
    *text = "the communicator was aborted while it formed";
    return ncclInternalError;
  }
  for (int one = 0; one < place_.size; ++one) {
    for (int other = one + 1; other < place_.size; ++other) {
      if (gpus[static_cast<size_t>(one)] != gpus[static_cast<size_t>(other)]) continue;
      *text = "Duplicate GPU detected : rank " + std::to_string(one) + " and rank " +
              std::to_string(other) + " both on " + gpus[static_cast<size_t>(one)];
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

ncclResult_t Communicator::CheckReady() const {
  const Lock lock(mutex_);
  if (state_ == ncclInProgress) {
    return Refuse(ncclInvalidArgument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  if (state_ != ncclSuccess) return Refuse(state_, text_);
  if (finalized_) return Refuse(ncclInvalidUsage, "the communicator was finalized");
  return ncclSuccess;
}

ncclResult_t Communicator::Enqueue(const std::vector<Operation>& operations, Stream& stream) {
  uint64_t turn = 0;
  {
    const Lock lock(mutex_);
    turn = ++queued_;
  }
  const uint64_t job = stream.Push(
      [self = shared_from_this(), operations, turn] { self->Perform(operations, turn); });
  for (const Operation& operation : operations) {
    for (const Use& use : UsesOf(operation, place_.rank, place_.size)) {
      NoteUse(use, stream, job, NameOf(operation), ended_);
    }
  }
  const cudaError_t error = WhyNothingWorks();
  return error == cudaSuccess ? ncclSuccess : Refuse(ncclUnhandledCudaError, WhyCudaFails(error));
}

void Communicator::Perform(const std::vector<Operation>& operations, uint64_t turn) {
  Lock lock(mutex_);
  ++inside_;
  changed_.wait(lock, [&] { return *ended_ || performed_ + 1 == turn; });
  if (!*ended_) {
    lock.unlock();
    const CollectiveResult result = PerformAll(operations);
    lock.lock();
    if (!result.ok() && !*ended_) SetError(result);
    // A kernel that cannot continue blocks its stream until its communicator ends.
    if (!result.ok()) changed_.wait(lock, [&] { return ended_->load(); });
  }
  performed_ = std::max(performed_, turn);
  --inside_;
  changed_.notify_all();
}

CollectiveResult Communicator::PerformAll(const std::vector<Operation>& operations) {
  std::vector<Operation> transfers;
  for (const Operation& operation : operations) {
    if (IsTransfer(operation)) {
      transfers.push_back(operation);
      continue;
    }
    const CollectiveResult result = RunCollective(operation, board_, &stream_meeting_);
    if (!result.ok()) return result;
  }
  return RunTransfers(transfers, board_);
}

void Communicator::SetError(const CollectiveResult& result) {
  state_ = result.mistake.empty() ? ncclRemoteError : ncclInvalidUsage;
  text_ = result.mistake.empty() ? result.failure.peer_lost : result.mistake;
  changed_.notify_all();
}

ncclResult_t Communicator::MakeChild(const std::string& id, int rank, int size, bool blocking,
                                     const Children& made, std::string* text) {
  Place place = place_;
  place.id = ChildId(place_.id, id);
  place.rank = rank;
  place.size = size;
  place.blocking = blocking;
  const auto child = std::make_shared<Communicator>(place);
  const ncclResult_t result = child->Join();
  made(child);
  if (result == ncclSuccess || result == ncclInProgress) return ncclSuccess;
  *text = LastRefusal();
  return result;
}

ncclResult_t Communicator::Split(int color, int key, bool blocking, Children made) {
  const int number = ++splits_;
  return Run(place_.blocking, [=](std::string* text) {
    Failure failure;
    char* const mine = host_meeting_.Begin(&failure);
    const int pair[] = {color, key};
    if (mine != nullptr) {
      memcpy(mine, pair, sizeof(pair));
      failure = host_meeting_.Exchange();
    }
    if (!failure.ok()) {
      *text = failure.stopped ? "the communicator was aborted" : failure.peer_lost;
      return failure.stopped ? ncclInternalError : ncclRemoteError;
    }
    std::vector<std::pair<int, int>> group;  // key and rank
    for (int rank = 0; rank < place_.size; ++rank) {
      int other[2];
      memcpy(other, host_meeting_.Of(rank), sizeof(other));
      if (other[0] == color) group.emplace_back(other[1], rank);
    }
    host_meeting_.End();
    if (color < 0) {
      made(nullptr);
      return ncclSuccess;
    }
    std::sort(group.begin(), group.end());
    const auto me = std::find(group.begin(), group.end(), std::make_pair(key, place_.rank));
    return MakeChild("split " + std::to_string(number) + " " + std::to_string(color),
                     static_cast<int>(me - group.begin()), static_cast<int>(group.size()), blocking,
                     made, text);
  });
}

ncclResult_t Communicator::Finalize() {
  const ncclResult_t ready = CheckReady();
  if (ready != ncclSuccess) return ready;
  {
    const Lock lock(mutex_);
    finalized_ = true;
  }
  return Run(place_.blocking, [this](std::string* text) {
    Lock lock(mutex_);
    // An error of a running operation replaces "in progress".
    changed_.wait(lock,
                  [this] { return performed_ == queued_ || *ended_ || state_ != ncclInProgress; });
    *text = text_;
    return state_ == ncclInProgress ? ncclSuccess : state_;
  });
}

void Communicator::Destroy() {
  {
    Lock lock(mutex_);
    changed_.wait(lock, [this] {
      const bool failed = state_ != ncclSuccess && state_ != ncclInProgress;
      return !task_runs_ && (performed_ == queued_ || failed || *ended_);
    });
  }
  Abort();
}

void Communicator::Abort() {
  {
    Lock lock(mutex_);
    *ended_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return inside_ == 0 && !task_runs_; });
  }
  board_.Close();
}

ncclRedOp_t Communicator::MakeFactor(ncclDataType_t type, std::string scalar) {
  const Lock lock(mutex_);
  const int number = kFirstFactor + factors_made_++;
  factors_[number] = {type, std::move(scalar)};
  return static_cast<ncclRedOp_t>(number);
}

bool Communicator::DropFactor(ncclRedOp_t op) {
  const Lock lock(mutex_);
  return factors_.erase(static_cast<int>(op)) > 0;
}

bool Communicator::FindFactor(ncclRedOp_t op, ncclDataType_t* type, std::string* scalar) const {
  const Lock lock(mutex_);
  const auto found = factors_.find(static_cast<int>(op));
  if (found == factors_.end()) return false;
  *type = found->second.type;
  *scalar = found->second.scalar;
  return true;
}

InsideCommunicator::InsideCommunicator(Communicator& communicator, const char* what)
    : communicator_(communicator) {
  {
    const Lock lock(communicator_.mutex_);
    is_alone_ = communicator_.owner_ == std::thread::id();
    if (is_alone_) communicator_.owner_ = std::this_thread::get_id();
  }
  if (is_alone_) return;
  RefuseMistake(ncclInvalidUsage,
                std::string(what) + " is called while another thread is inside the communicator");
}

InsideCommunicator::~InsideCommunicator() {
  if (!is_alone_) return;
  const Lock lock(communicator_.mutex_);
  communicator_.owner_ = std::thread::id();
}

namespace {

struct Entry {
  std::shared_ptr<Communicator> communicator;
  std::string end;
};

struct Handles {
  std::mutex mutex;
  std::map<ncclComm_t, Entry> entries;
  uintptr_t last = 0;

  static Handles& Get() {
    static auto* const handles = new Handles;
    return *handles;
  }
};

// Finds an entry, which may not exist; the caller holds the mutex.
std::shared_ptr<Communicator> Find(ncclComm_t handle, const char* what, std::string* why) {
  auto& entries = Handles::Get().entries;
  const auto found = entries.find(handle);
  if (found != entries.end() && found->second.communicator != nullptr) {
    return found->second.communicator;
  }
  *why =
      std::string(what != nullptr ? what : "the call") +
      (found == entries.end() ? " has no communicator"
                              : " uses a communicator that was " + found->second.end + " before");
  return nullptr;
}

}  // namespace

ncclComm_t MakeHandle(std::shared_ptr<Communicator> communicator) {
  Handles& handles = Handles::Get();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  // The handle is a number and not an address, so that a program cannot dereference it.
  const auto handle = reinterpret_cast<ncclComm_t>(++handles.last);
  handles.entries[handle] = {std::move(communicator), ""};
  return handle;
}

std::shared_ptr<Communicator> FindCommunicator(ncclComm_t handle, const char* what) {
  std::string why;
  std::shared_ptr<Communicator> found;
  {
    const std::lock_guard<std::mutex> lock(Handles::Get().mutex);
    found = Find(handle, what, &why);
  }
  if (found != nullptr || what == nullptr) return found;
  RefuseMistake(ncclInvalidArgument, why);
  return nullptr;
}

std::shared_ptr<Communicator> TakeCommunicator(ncclComm_t handle, const char* what,
                                               const char* end) {
  std::string why;
  {
    const std::lock_guard<std::mutex> lock(Handles::Get().mutex);
    auto found = Find(handle, what, &why);
    if (found != nullptr) {
      Handles::Get().entries[handle] = {nullptr, end};
      return found;
    }
  }
  RefuseMistake(ncclInvalidArgument, why);
  return nullptr;
}

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS
