// The memory of a hook, as bytes for a checkpoint: the hook's name, numbers, and floats by
// parameter. Little-endian. Pure.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_HOOK_STATE_H_
#define CADRE_WORKER_RUNTIME_HOOKS_HOOK_STATE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/communication_hook.h"
#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::hooks {

// Floats for some of the parameters.
using FloatsByParameter = std::map<size_t, std::vector<float>>;

// Those of this gradient; zeros when there were none.
std::vector<float>& Of(FloatsByParameter& floats, const GradientView& gradient);

// INVALID_ARGUMENT: naming a gradient that has another number of elements.
Status CheckSizes(const FloatsByParameter& floats, Span<const BucketView> buckets);

class HookStateWriter {
 public:
  explicit HookStateWriter(std::string_view hook);
  void Put(uint64_t number);
  void Put(const FloatsByParameter& floats);
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// `state` must live as long as this. All errors are INVALID_ARGUMENT.
class HookStateReader {
 public:
  explicit HookStateReader(std::string_view state) : rest_(state) {}
  // First: whether that hook wrote it.
  Status Expect(std::string_view hook);
  Result<uint64_t> Number();
  Result<FloatsByParameter> Floats();
  // Last: whether that was all.
  Status End() const;

 private:
  std::string_view rest_;
};

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_HOOK_STATE_H_
