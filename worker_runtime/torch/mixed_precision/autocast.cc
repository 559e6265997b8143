#include "cadre/torch/autocast.h"

#include <algorithm>
#include <array>

#include "ATen/autocast_mode.h"
#include "torch/version.h"

namespace cadre::nn {
namespace {

namespace autocast = at::autocast;

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)

// These releases have one set of functions for all devices.
bool KnowsAutocast(torch::DeviceType device) {
  const auto& all = autocast::_AUTOCAST_SUPPORTED_DEVICES;
  return std::find(all.begin(), all.end(), device) != all.end();
}
bool AutocastIsEnabled(torch::DeviceType device) { return autocast::is_autocast_enabled(device); }
void EnableAutocast(torch::DeviceType device, bool enabled) {
  autocast::set_autocast_enabled(device, enabled);
}
torch::ScalarType AutocastType(torch::DeviceType device) {
  return autocast::get_autocast_dtype(device);
}
void SetAutocastType(torch::DeviceType device, torch::ScalarType type) {
  autocast::set_autocast_dtype(device, type);
}

#else

bool KnowsAutocast(torch::DeviceType device) {
  return device == torch::kCPU || device == torch::kCUDA;
}
bool AutocastIsEnabled(torch::DeviceType device) {
  return device == torch::kCPU ? autocast::is_cpu_enabled() : autocast::is_enabled();
}
void EnableAutocast(torch::DeviceType device, bool enabled) {
  if (device == torch::kCPU) return autocast::set_cpu_enabled(enabled);
  autocast::set_enabled(enabled);
}
torch::ScalarType AutocastType(torch::DeviceType device) {
  return device == torch::kCPU ? autocast::get_autocast_cpu_dtype()
                               : autocast::get_autocast_gpu_dtype();
}
void SetAutocastType(torch::DeviceType device, torch::ScalarType type) {
  if (device == torch::kCPU) return autocast::set_autocast_cpu_dtype(type);
  autocast::set_autocast_gpu_dtype(type);
}

#endif

void SetAutocast(torch::DeviceType device, const AutocastState& state) {
  EnableAutocast(device, state.enabled);
  SetAutocastType(device, state.type);
  autocast::set_autocast_cache_enabled(state.cache);
}

}  // namespace

bool HasAutocast(torch::DeviceType device) { return KnowsAutocast(device); }

AutocastState CurrentAutocast(torch::DeviceType device) {
  AutocastState state;
  state.cache = autocast::is_autocast_cache_enabled();
  if (!KnowsAutocast(device)) return state;
  state.enabled = AutocastIsEnabled(device);
  state.type = AutocastType(device);
  return state;
}

Autocast::Autocast(torch::DeviceType device, torch::ScalarType type, bool enabled)
    : Autocast(device, {enabled, type, autocast::is_autocast_cache_enabled()}) {}

Autocast::Autocast(torch::DeviceType device, const AutocastState& state)
    : device_(device), before_(CurrentAutocast(device)) {
  TORCH_CHECK(KnowsAutocast(device), "this libtorch has no autocast for ", device);
  TORCH_CHECK(!state.enabled || state.type == torch::kFloat16 || state.type == torch::kBFloat16,
              "autocast to ", state.type, " is not possible, only to float16 or bfloat16");
  SetAutocast(device_, state);
  autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  SetAutocast(device_, before_);
}

}  // namespace cadre::nn
