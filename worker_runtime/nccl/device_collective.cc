#include "worker_runtime/nccl/device_collective.h"

#ifdef CADRE_WITH_NCCL

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::nccl {
namespace {

class DeviceCollective : public DeviceOperation {
 public:
  DeviceCollective(std::shared_ptr<NcclHandle> handle, cuda::CudaStreamHandle stream,
                   std::function<ncclResult_t(ncclComm_t)> call)
      : handle_(std::move(handle)), stream_(stream), call_(std::move(call)) {}

  Status Prepare(cuda::CudaStreamHandle producer) {
    ASSIGN_OR_RETURN(ready_, cuda::CudaEvent::Create());
    ASSIGN_OR_RETURN(started_, cuda::CudaEvent::Create());
    ASSIGN_OR_RETURN(done_, cuda::CudaEvent::Create());
    return ready_->Record(producer);
  }

  Status Start(MonoTime deadline) override {
    RETURN_IF_ERROR(ready_->MakeWait(stream_));
    RETURN_IF_ERROR(started_->Record(stream_));
    if (call_) RETURN_IF_ERROR(handle_->Run("NCCL", deadline, call_));
    return done_->Record(stream_);
  }

  Result<Stage> Poll() override {
    ASSIGN_OR_RETURN(const bool is_done, done_->Happened());
    if (is_done) return Stage::kDone;
    ASSIGN_OR_RETURN(const bool has_started, started_->Happened());
    return has_started ? Stage::kRunning : Stage::kWaiting;
  }

  std::chrono::nanoseconds duration() const override {
    return done_->Since(*started_).value_or(std::chrono::nanoseconds(0));
  }

 private:
  const std::shared_ptr<NcclHandle> handle_;
  const cuda::CudaStreamHandle stream_;
  const std::function<ncclResult_t(ncclComm_t)> call_;
  std::unique_ptr<cuda::CudaEvent> ready_, started_, done_;
};

class HostOperation : public DeviceOperation {
 public:
  explicit HostOperation(std::function<Status(MonoTime)> body) : body_(std::move(body)) {}
  Status Start(MonoTime deadline) override { return body_(deadline); }
  Result<Stage> Poll() override { return Stage::kDone; }
  std::chrono::nanoseconds duration() const override { return std::chrono::nanoseconds(0); }

 private:
  const std::function<Status(MonoTime)> body_;
};

ncclRedOp_t BuiltIn(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kAverage:
      return ncclAvg;
  }
  return ncclSum;
}

// Writes `factor` as an element of `type`.
void WriteScalar(DataType type, double factor, void* bytes) {
  const float narrow = static_cast<float>(factor);
  if (type == DataType::kFloat64) {
    memcpy(bytes, &factor, sizeof(factor));
  } else if (type == DataType::kFloat32) {
    memcpy(bytes, &narrow, sizeof(narrow));
  } else {
    reduce::NarrowFromFloat(type, &narrow, 1, bytes);
  }
}

// Before this version NCCL omits the last elements of what a single rank multiplies.
constexpr int kMultipliesAllFrom = 22907;

// Returns how many elements NCCL multiplies: its blocks take shares that are rounded down
// (src/device/onerank.cu in 2.19 to 2.29.2). The rest is smaller than the number of blocks, so one
// block handles it.
size_t MultipliedByOneRank(DataType type, size_t count) {
  constexpr size_t kPackBytes = 16, kBlockBytes = 16 << 10, kMaxBlocks = 32;
  const size_t pack = kPackBytes / SizeOf(type);
  const size_t blocks =
      std::min(kMaxBlocks, (count * SizeOf(type) + kBlockBytes - 1) / kBlockBytes);
  const size_t each = (count / blocks + pack - 1) / pack * pack;
  return std::min(count, blocks * each);
}

}  // namespace

bool IsTaken(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

ncclResult_t InGroup(const NcclApi& api, const std::function<ncclResult_t()>& body) {
  ncclResult_t result = api.GroupStart();
  if (result != ncclSuccess) return result;
  result = body();
  const ncclResult_t ended = api.GroupEnd();
  return IsTaken(result) ? ended : result;
}

ncclDataType_t NcclType(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat64:
      return ncclFloat64;
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kBfloat16:
      return ncclBfloat16;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kUint8:
      return ncclUint8;
  }
  return ncclUint8;
}

Status NcclReduction::Check(const Reduction& reduction) {
  const bool is_sum = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  if (is_sum || reduction.premultiply == 1) return OkStatus();
  return UnimplementedError(
      "with NCCL, a factor before the reduction (premultiply) works only with sum and average");
}

ncclResult_t NcclReduction::With(const NcclApi& api, ncclComm_t communicator,
                                 const Reduction& reduction, DataType type,
                                 const std::function<ncclResult_t(ncclRedOp_t)>& call) {
  if (reduction.premultiply == 1) return call(BuiltIn(reduction.op));
  double factor = reduction.premultiply;
  if (reduction.op == ReduceOp::kAverage) {
    int size = 1;
    const ncclResult_t counted = api.CommCount(communicator, &size);
    if (counted != ncclSuccess) return counted;
    factor /= size;
  }
  double scalar = 0;
  WriteScalar(type, factor, &scalar);
  ncclRedOp_t made;
  const ncclResult_t created = api.RedOpCreatePreMulSum(&made, &scalar, NcclType(type),
                                                        ncclScalarHostImmediate, communicator);
  if (created != ncclSuccess) return created;
  const ncclResult_t result = call(made);
  // NCCL copies the operation into what it queues, so it may be destroyed once the call has
  // returned.
  api.RedOpDestroy(made, communicator);
  return result;
}

ncclResult_t NcclReduction::Over(const NcclApi& api, ncclComm_t communicator,
                                 const Reduction& reduction, DataType type, size_t count,
                                 const RangeCall& call) {
  int ranks = 1;
  const ncclResult_t counted = api.CommCount(communicator, &ranks);
  if (counted != ncclSuccess) return counted;
  if (ranks > 1) {
    return With(api, communicator, reduction, type,
                [&](ncclRedOp_t op) { return call(op, 0, count); });
  }
  // An average of one rank is its sum, which NCCL copies; for an average it would multiply by 1.
  const Reduction own = {reduction.op == ReduceOp::kAverage ? ReduceOp::kSum : reduction.op,
                         reduction.premultiply};
  const bool multiplies = own.premultiply != 1 && api.version < kMultipliesAllFrom;
  const size_t multiplied = multiplies ? MultipliedByOneRank(type, count) : count;
  return With(api, communicator, own, type, [&](ncclRedOp_t op) {
    if (multiplied == count) return call(op, 0, count);
    return InGroup(api, [&] {
      const ncclResult_t result = call(op, 0, multiplied);
      return IsTaken(result) ? call(op, multiplied, count - multiplied) : result;
    });
  });
}

Result<std::unique_ptr<DeviceOperation>> MakeDeviceCollective(
    std::shared_ptr<NcclHandle> handle, cuda::CudaStreamHandle producer,
    cuda::CudaStreamHandle stream, std::function<ncclResult_t(ncclComm_t)> call) {
  auto operation = std::make_unique<DeviceCollective>(std::move(handle), stream, std::move(call));
  RETURN_IF_ERROR(operation->Prepare(producer));
  return std::unique_ptr<DeviceOperation>(std::move(operation));
}

std::unique_ptr<DeviceOperation> MakeHostOperation(std::function<Status(MonoTime)> body) {
  return std::make_unique<HostOperation>(std::move(body));
}

namespace {

Result<std::shared_ptr<void>> Allocate(const NcclApi& api, size_t bytes) {
  void* data = nullptr;
  if (api.MemAlloc != nullptr && api.MemFree != nullptr &&
      api.MemAlloc(&data, bytes) == ncclSuccess) {
    return std::shared_ptr<void>(data, [&api](void* memory) { api.MemFree(memory); });
  }
  // ncclMemAlloc() needs more of the driver than cudaMalloc() does, so the latter may still work.
  // If not, its error shows the cause.
  return cuda::AllocateOnCudaDevice(bytes);
}

// Deregisters the memory with NCCL before it is freed.
class Registered {
 public:
  Registered(std::shared_ptr<NcclHandle> handle, std::shared_ptr<void> memory, void* registration)
      : handle_(std::move(handle)), memory_(std::move(memory)), registration_(registration) {}
  ~Registered() { handle_->Deregister(registration_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  const std::shared_ptr<NcclHandle> handle_;
  const std::shared_ptr<void> memory_;
  void* const registration_;
};

}  // namespace

Result<std::shared_ptr<void>> AllocateForNccl(std::shared_ptr<NcclHandle> handle, size_t bytes,
                                              MonoTime deadline) {
  const size_t size = std::max<size_t>(bytes, 1);
  Result<std::shared_ptr<void>> memory = Allocate(handle->api(), size);
  if (!memory.ok()) return memory;
  const Result<void*> registration = handle->Register(memory->get(), size, deadline);
  // Unregistered memory works too, with a copy.
  if (!registration.ok()) return memory;
  void* const data = memory->get();
  auto owner = std::make_shared<Registered>(std::move(handle), *std::move(memory), *registration);
  return std::shared_ptr<void>(std::move(owner), data);
}

namespace {

// Calls `call`, in a group, with the rank, the address and the element count of each part that is
// not empty.
template <typename Call>
ncclResult_t ForEachPart(const NcclApi& api, const VaryingParts& parts, const Call& call) {
  return InGroup(api, [&] {
    ncclResult_t result = ncclSuccess;
    char* place = static_cast<char*>(parts.whole.data);
    for (size_t rank = 0; rank < parts.counts.size() && IsTaken(result); ++rank) {
      const size_t count = parts.counts[rank];
      if (count > 0) result = call(static_cast<int>(rank), place, count);
      place += count * SizeOf(parts.whole.type);
    }
    return result;
  });
}

}  // namespace

bool AreEqual(Span<const size_t> counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&counts](size_t count) { return count == *counts.begin(); });
}

ncclResult_t AllGatherParts(const NcclApi& api, ncclComm_t communicator, const VaryingParts& parts,
                            cuda::CudaStreamHandle stream) {
  return ForEachPart(api, parts, [&](int root, char* place, size_t count) {
    const void* const source = root == parts.rank ? parts.own.data : place;
    return api.Broadcast(source, place, count, NcclType(parts.whole.type), root, communicator,
                         static_cast<cudaStream_t>(stream));
  });
}

ncclResult_t ReduceScatterParts(const NcclApi& api, ncclComm_t communicator,
                                const VaryingParts& parts, ncclRedOp_t op,
                                cuda::CudaStreamHandle stream) {
  return ForEachPart(api, parts, [&](int root, char* place, size_t count) {
    // NCCL writes the result only on the root.
    void* const result = root == parts.rank ? parts.own.data : place;
    return api.Reduce(place, result, count, NcclType(parts.whole.type), op, root, communicator,
                      static_cast<cudaStream_t>(stream));
  });
}

}  // namespace cadre::nccl

#endif  // CADRE_WITH_NCCL
