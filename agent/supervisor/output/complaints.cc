#include "agent/supervisor/output/complaints.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/threads/file_thread.h"

namespace cadre::supervisor {
namespace {

constexpr size_t kMostWaiting = 64 << 10;
constexpr size_t kLongestLine = 1024;

FileThread& Writer() {
  static auto* const writer = new FileThread({true, kMostWaiting});
  return *writer;
}

}  // namespace

void Complain(absl::string_view line) {
  std::string text = absl::StrCat("cadre-supervisor: ", line.substr(0, kLongestLine), "\n");
  const size_t bytes = text.size();
  if (!Writer().HasRoom(bytes)) return;
  Writer().Post(
      [text = std::move(text)] {
        [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
      },
      bytes);
}

void FlushComplaints() { Writer().Drain(kDrainLimit); }

}  // namespace cadre::supervisor
