// The default implementations of Communicator, and WaitOrAbort.
#include "cadre/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cadre/wait_or_abort.h"
#include "cadre/work.h"

namespace cadre {
size_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kFloat64:
    case DataType::kInt64:
      return 8;
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kUint8:
      return 1;
  }
  return 0;
}

bool IsFloatingPoint(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
         type == DataType::kBfloat16;
}

namespace {

Status Lacks(const char* operation) {
  return UnimplementedError(absl::StrCat("this backend has no ", operation));
}

}  // namespace

std::shared_ptr<Work> Communicator::Reduce(Buffer, Reduction, int) {
  return FinishedWork(Lacks("reduce to one rank"));
}

std::shared_ptr<Work> Communicator::ReduceScatter(Buffer, Buffer, Reduction) {
  return FinishedWork(Lacks("reduce-scatter"));
}

std::shared_ptr<Work> Communicator::ReduceScatterVarying(Buffer, Buffer, Span<const size_t>,
                                                         Reduction) {
  return FinishedWork(Lacks("reduce-scatter of varying sizes"));
}

std::shared_ptr<Work> Communicator::AllGatherVarying(Buffer, Buffer, Span<const size_t>) {
  return FinishedWork(Lacks("all-gather of varying sizes"));
}

std::shared_ptr<Work> Communicator::Send(Buffer, int, int) { return FinishedWork(Lacks("send")); }

std::shared_ptr<Work> Communicator::Receive(Buffer, int, int) {
  return FinishedWork(Lacks("receive"));
}

Result<std::unique_ptr<Communicator>> Communicator::Split(int, int) { return Lacks("split"); }

Result<std::shared_ptr<void>> Communicator::AllocateBuffer(size_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t rounded = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) {
    return ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  }
  std::memset(memory, 0, rounded);
  return std::shared_ptr<void>(memory, std::free);
}

Status WaitOrAbort(Communicator& communicator, const std::shared_ptr<Work>& work,
                   std::chrono::nanoseconds timeout) {
  Status status = work->Wait(timeout);
  if (status.ok()) return status;
  communicator.Abort();
  work->Wait(kAbortGrace).IgnoreError();
  return status;
}

}  // namespace cadre
