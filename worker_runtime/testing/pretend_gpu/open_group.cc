#include "worker_runtime/testing/pretend_gpu/open_group.h"

#include <set>
#include <string>

#include "worker_runtime/testing/pretend_gpu/mistakes.h"
#include "worker_runtime/testing/pretend_gpu/streams.h"

namespace cadre::pretend_gpu {
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
