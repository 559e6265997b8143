// CUDA's functions for devices and errors.
#include "worker_runtime/testing/pretend_gpu/cudart_call.h"

#ifdef CADRE_HAVE_CUDA_HEADERS

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "worker_runtime/testing/pretend_gpu/devices.h"
#include "worker_runtime/testing/pretend_gpu/mistakes.h"

using cadre::pretend_gpu::Call;
using cadre::pretend_gpu::CurrentDevice;
using cadre::pretend_gpu::DeviceCount;
using cadre::pretend_gpu::HasDriver;
using cadre::pretend_gpu::PhysicalDevice;

namespace cadre::pretend_gpu {
namespace {

constexpr int kVersion = 13000;

thread_local cudaError_t last_error = cudaSuccess;

bool IsDevice(int device) { return device >= 0 && device < DeviceCount(); }

const char* PlainText(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInitializationError:
      return "initialization error";
    case cudaErrorInvalidMemcpyDirection:
      return "invalid copy direction for memcpy";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorNotSupported:
      return "operation not supported";
    default:
      return "unrecognized error code";
  }
}

}  // namespace

cudaError_t WhyNothingWorks() {
  if (!HasDriver()) return cudaErrorInsufficientDriver;
  if (DeviceCount() == 0) return cudaErrorNoDevice;
  static const pid_t first_user = getpid();
  if (getpid() != first_user) return cudaErrorInitializationError;
  return HasMistake() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t KeepError(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace cadre::pretend_gpu

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  using namespace cadre::pretend_gpu;
  if (error != cudaErrorIllegalAddress || !HasMistake()) return PlainText(error);
  static const auto* const text = new std::string(PlainText(error) + (": " + FirstMistake()));
  return text->c_str();
}

cudaError_t cudaGetLastError(void) {
  return std::exchange(cadre::pretend_gpu::last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError(void) { return cadre::pretend_gpu::last_error; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = HasDriver() ? cadre::pretend_gpu::kVersion : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = cadre::pretend_gpu::kVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return Call([&] {
    *count = DeviceCount();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Call([&] {
    *device = CurrentDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Call([&] {
    if (!cadre::pretend_gpu::IsDevice(device)) return cudaErrorInvalidDevice;
    cadre::pretend_gpu::SetCurrentDevice(device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  return Call([&] {
    if (!cadre::pretend_gpu::IsDevice(device)) return cudaErrorInvalidDevice;
    const int length =
        std::snprintf(text, static_cast<size_t>(size), "0000:%02X:00.0", PhysicalDevice(device));
    return length < size ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  return Call([&] {
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
  });
}

}  // extern "C"

#endif  // CADRE_HAVE_CUDA_HEADERS
