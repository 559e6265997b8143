// Every operator that the pretend device does not have itself, by the CPU's kernels.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_FALLBACK_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_FALLBACK_H_

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"

namespace cadre::pretend {

// First the CPU's kernel runs at once on zeros of the same shapes: its results tell sizes, strides,
// type and aliasing. Then the true run is queued on the current stream, and the host goes on. An
// operator whose result's shape depends on the data, or is a value of the host, waits for the
// stream.
void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_FALLBACK_H_
