#include "worker_runtime/testing/pretend_gpu/mistakes.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace cadre::pretend_gpu {
namespace {

struct Mistakes {
  std::atomic<bool> any{false};
  std::mutex mutex;
  std::string first;
};

// Never destroyed: the threads of streams use it until the process ends.
Mistakes& All() {
  static auto* const all = new Mistakes;
  return *all;
}

}  // namespace

void ReportMistake(const std::string& text) {
  std::fprintf(stderr, "pretend GPU, process %d: %s\n", static_cast<int>(getpid()), text.c_str());
  const std::lock_guard<std::mutex> lock(All().mutex);
  if (All().first.empty()) All().first = text;
  All().any = true;
}

std::string FirstMistake() {
  const std::lock_guard<std::mutex> lock(All().mutex);
  return All().first;
}

bool HasMistake() { return All().any; }

}  // namespace cadre::pretend_gpu
