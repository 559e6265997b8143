#include "worker_runtime/testing/pretend_gpu/devices.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "worker_runtime/testing/pretend_gpu/memory.h"

namespace cadre::pretend_gpu {
namespace {

// The machine's GPUs, according to the environment.
struct Machine {
  int gpus = 1;
  std::vector<int> visible;

  static const Machine& Get() {
    static const auto* const machine = new Machine;
    return *machine;
  }

  Machine() {
    const char* const text = getenv("CADRE_PRETEND_GPUS");
    if (text != nullptr && *text != '\0') gpus = std::max(0, atoi(text));
    const char* const list = getenv("CUDA_VISIBLE_DEVICES");
    if (list == nullptr) {
      for (int device = 0; device < gpus; ++device) visible.push_back(device);
      return;
    }
    std::istringstream words(list);
    for (std::string word; std::getline(words, word, ',');) {
      char* end = nullptr;
      const long device = strtol(word.c_str(), &end, 10);
      // As in CUDA, the list ends at the first entry that is not a GPU.
      if (end == word.c_str() || device < 0 || device >= gpus) break;
      visible.push_back(static_cast<int>(device));
    }
  }
};

struct Handles {
  std::mutex mutex;
  std::map<int, Stream*> defaults;  // by device
  std::map<const void*, Stream*> streams;
  std::vector<Stream*> destroyed;  // jobs and uses of memory still refer to them
  std::map<const void*, std::unique_ptr<Event>> events;

  static Handles& Get() {
    static auto* const handles = new Handles;
    return *handles;
  }
};

thread_local int current_device = 0;

}  // namespace

bool HasDriver() { return Machine::Get().gpus > 0; }
int DeviceCount() { return static_cast<int>(Machine::Get().visible.size()); }
int PhysicalDevice(int device) { return Machine::Get().visible.at(static_cast<size_t>(device)); }
int CurrentDevice() { return current_device; }
void SetCurrentDevice(int device) { current_device = device; }

Stream* MakeStream(int device) {
  auto* const stream = new Stream(device, "");
  Handles& handles = Handles::Get();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  return handles.streams[stream] = stream;
}

Stream* FindStream(const void* handle) {
  Handles& handles = Handles::Get();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  if (handle == nullptr) {
    Stream*& stream = handles.defaults[current_device];
    if (stream == nullptr) {
      stream =
          new Stream(current_device, "the default stream of GPU " + std::to_string(current_device));
    }
    return stream;
  }
  const auto found = handles.streams.find(handle);
  return found == handles.streams.end() ? nullptr : found->second;
}

bool DestroyStream(const void* handle) {
  Handles& handles = Handles::Get();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  const auto found = handles.streams.find(handle);
  if (found == handles.streams.end()) return false;
  found->second->Close();
  handles.destroyed.push_back(found->second);
  handles.streams.erase(found);
  return true;
}

Event* MakeEvent(int device) {
  auto event = std::make_unique<Event>(device);
  Event* const made = event.get();
  Handles& handles = Handles::Get();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  handles.events[made] = std::move(event);
  return made;
}

Event* FindEvent(const void* handle) {
  Handles& handles = Handles::Get();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  const auto found = handles.events.find(handle);
  return found == handles.events.end() ? nullptr : found->second.get();
}

bool DestroyEvent(const void* handle) {
  Handles& handles = Handles::Get();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  return handles.events.erase(handle) > 0;
}

namespace {

thread_local std::set<const Stream*> held;

}  // namespace

void HoldInGroup(const Stream& stream) { held.insert(&stream); }

void CloseGroup() { held.clear(); }

bool ReportOpenGroup(const Stream* stream, const char* what) {
  if (stream == nullptr ? held.empty() : held.count(stream) == 0) return false;
  ReportMistake(std::string(what) +
                " is called in a group that is still open: ncclGroupEnd is "
                "missing before it, so what the group holds has not begun");
  return true;
}

}  // namespace cadre::pretend_gpu
