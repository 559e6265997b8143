// NCCL's functions for operations.
#ifdef CADRE_HAVE_NCCL_HEADERS
#include <nccl.h>

#include <string>

#include "worker_runtime/testing/pretend_gpu/communicator.h"
#include "worker_runtime/testing/pretend_gpu/elements.h"
#include "worker_runtime/testing/pretend_gpu/handles.h"
#include "worker_runtime/testing/pretend_gpu/operation.h"
#include "worker_runtime/testing/pretend_gpu/refusal.h"
#include "worker_runtime/testing/pretend_gpu/submit.h"

using cadre::pretend_gpu::FindCommunicator;
using cadre::pretend_gpu::Kind;
using cadre::pretend_gpu::Refuse;
using cadre::pretend_gpu::Submit;

extern "C" {

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kAllReduce, send, receive, count, type, op, 0, ""}, stream);
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kReduce, send, receive, count, type, op, root, ""}, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kReduceScatter, send, receive, count, type, op, 0, ""},
                stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kBroadcast, send, receive, count, type, ncclSum, root, ""},
                stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kAllGather, send, receive, count, type, ncclSum, 0, ""},
                stream);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kSend, send, nullptr, count, type, ncclSum, peer, ""}, stream);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return Submit(communicator, {Kind::kReceive, nullptr, receive, count, type, ncclSum, peer, ""},
                stream);
}

ncclResult_t ncclGroupStart() {
  cadre::pretend_gpu::BeginGroup();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return cadre::pretend_gpu::EndGroup(); }

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
  const auto communicator = FindCommunicator(handle, "ncclRedOpCreatePreMulSum");
  if (communicator == nullptr) return ncclInvalidArgument;
  const size_t bytes = cadre::pretend_gpu::SizeOf(type);
  if (bytes == 0) return Refuse(ncclInvalidArgument, "no such type is simulated");
  if (residence != ncclScalarHostImmediate) {
    return Refuse(ncclInvalidUsage, "a factor in the device's memory is not simulated");
  }
  *op = communicator->MakeFactor(type, std::string(static_cast<const char*>(scalar), bytes));
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  const auto communicator = FindCommunicator(handle, "ncclRedOpDestroy");
  if (communicator == nullptr) return ncclInvalidArgument;
  if (communicator->DropFactor(op)) return ncclSuccess;
  return Refuse(ncclInvalidArgument, "ncclRedOpDestroy: there is no such operation");
}

}  // extern "C"

#endif  // CADRE_HAVE_NCCL_HEADERS
