#include "worker_runtime/testing/pretend_gpu/refusal.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

#include "worker_runtime/testing/pretend_gpu/memory.h"

namespace cadre::pretend_gpu {
namespace {

thread_local std::string last;

}  // namespace

ncclResult_t Refuse(ncclResult_t result, const std::string& text) {
  last = text;
  return result;
}

ncclResult_t RefuseMistake(ncclResult_t result, const std::string& text) {
  ReportMistake(text);
  return Refuse(result, text);
}

const std::string& LastRefusal() { return last; }

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS
