#include "worker_runtime/testing/pretend_gpu/handles.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "worker_runtime/testing/pretend_gpu/refusal.h"

namespace cadre::pretend_gpu {
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

// Of an entry that may not be there; called with the mutex.
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
  // A number that is no address, so that nobody looks inside.
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
