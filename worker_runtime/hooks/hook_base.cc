// The code that hooks share: their state in checkpoints, their thread, and the floats of a bucket.
#include "worker_runtime/hooks/hook_base.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::hooks {
namespace {

constexpr char kMark[] = "cadre hook state 1: ";
// The bytes of a foreign state that an error quotes.
constexpr size_t kQuoted = 60;

std::string FirstLine(std::string_view hook) { return absl::StrCat(kMark, ToAbsl(hook), "\n"); }

Status TooShort() {
  return InvalidArgumentError("the state of the communication hook ends too early");
}

}  // namespace

std::vector<float>& Of(FloatsByParameter& floats, const GradientView& gradient) {
  std::vector<float>& found = floats[gradient.parameter];
  found.resize(gradient.count);
  return found;
}

Status CheckSizes(const FloatsByParameter& floats, Span<const BucketView> buckets) {
  for (const BucketView& bucket : buckets) {
    for (const GradientView& gradient : bucket.gradients) {
      const auto found = floats.find(gradient.parameter);
      if (found == floats.end() || found->second.size() == gradient.count) continue;
      return InvalidArgumentError(
          absl::StrCat("parameter ", gradient.parameter, " has ", gradient.count,
                       " elements, and the state of the communication hook ", found->second.size(),
                       ": it was saved for another model"));
    }
  }
  return OkStatus();
}

HookStateWriter::HookStateWriter(std::string_view hook) : bytes_(FirstLine(hook)) {}

void HookStateWriter::Put(uint64_t number) {
  bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void HookStateWriter::Put(const FloatsByParameter& floats) {
  Put(floats.size());
  for (const auto& [parameter, values] : floats) {
    Put(parameter);
    Put(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
}

Status HookStateReader::Expect(std::string_view hook) {
  const std::string first_line = FirstLine(hook);
  if (rest_.substr(0, first_line.size()) == first_line) {
    rest_.remove_prefix(first_line.size());
    return OkStatus();
  }
  const std::string_view line = rest_.substr(0, std::min(rest_.find('\n'), kQuoted));
  return InvalidArgumentError(absl::StrCat("this is not a state that the hook \"", ToAbsl(hook),
                                           "\" saved: it begins with \"",
                                           absl::CHexEscape(ToAbsl(line)), "\""));
}

Result<uint64_t> HookStateReader::Number() {
  uint64_t number;
  if (rest_.size() < sizeof(number)) return TooShort();
  std::memcpy(&number, rest_.data(), sizeof(number));
  rest_.remove_prefix(sizeof(number));
  return number;
}

Result<FloatsByParameter> HookStateReader::Floats() {
  FloatsByParameter floats;
  ASSIGN_OR_RETURN(const uint64_t entries, Number());
  for (uint64_t entry = 0; entry < entries; ++entry) {
    ASSIGN_OR_RETURN(const uint64_t parameter, Number());
    ASSIGN_OR_RETURN(const uint64_t count, Number());
    if (count > rest_.size() / sizeof(float)) return TooShort();
    std::vector<float>& values = floats[parameter];
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), rest_.data(), count * sizeof(float));
    rest_.remove_prefix(count * sizeof(float));
  }
  return floats;
}

Status HookStateReader::End() const {
  if (rest_.empty()) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("the state of the communication hook has ", rest_.size(), " bytes too many"));
}

namespace {

// Longer than any communicator's timeout for one operation, so that the communicator's own error,
// which is more specific, comes first.
constexpr std::chrono::nanoseconds kPatience = std::chrono::hours(25);

}  // namespace

Status HookThread::AllReduce(Communicator& communicator, Buffer buffer, ReduceOp op) {
  bytes_given_ += buffer.count * SizeOf(buffer.type);
  return Wait(communicator, communicator.AllReduce(buffer, op));
}

Status HookThread::SumFloats(Communicator& communicator, float* values, size_t count,
                             DataType wire) {
  if (count == 0) return OkStatus();
  if (wire == DataType::kFloat32) {
    return AllReduce(communicator, {values, count, wire}, ReduceOp::kSum);
  }
  std::vector<uint16_t> narrow(count);
  reduce::NarrowFromFloat(wire, values, count, narrow.data());
  RETURN_IF_ERROR(AllReduce(communicator, {narrow.data(), count, wire}, ReduceOp::kSum));
  reduce::WidenToFloat(wire, narrow.data(), count, values);
  return OkStatus();
}

Status HookThread::AllGather(Communicator& communicator, Buffer input, Buffer output) {
  bytes_given_ += input.count * SizeOf(input.type);
  return Wait(communicator, communicator.AllGather(input, output));
}

Status HookThread::Broadcast(Communicator& communicator, Buffer buffer, int root) {
  if (communicator.rank() == root) bytes_given_ += buffer.count * SizeOf(buffer.type);
  return Wait(communicator, communicator.Broadcast(buffer, root));
}

Status HookThread::Wait(Communicator& communicator, const std::shared_ptr<Work>& work) {
  return WaitOrAbort(communicator, work, kPatience);
}

namespace {

constexpr size_t kMaxElements = std::numeric_limits<int32_t>::max();

}  // namespace

Status CheckFloatBuckets(absl::string_view hook, Span<const BucketView> buckets) {
  for (const BucketView& bucket : buckets) {
    const DataType type = bucket.buffer.type;
    if (type != DataType::kFloat32 && type != DataType::kFloat16 && type != DataType::kBfloat16) {
      return InvalidArgumentError(absl::StrCat(
          "the gradients of bucket ", bucket.index, " are ", backend::Name(type), "; ", hook,
          " works on float32: convert the model, or synchronize without this hook"));
    }
    if (bucket.buffer.count > kMaxElements) {
      return InvalidArgumentError(
          absl::StrCat("bucket ", bucket.index, " has ", bucket.buffer.count, " elements; ", hook,
                       " takes at most ", kMaxElements, ": lower bucket_bytes"));
    }
  }
  return OkStatus();
}

std::vector<float> LoadFloats(const Buffer& buffer) {
  std::vector<float> values(buffer.count);
  if (buffer.count == 0) return values;
  if (buffer.type == DataType::kFloat32) {
    std::memcpy(values.data(), buffer.data, buffer.count * sizeof(float));
  } else {
    reduce::WidenToFloat(buffer.type, buffer.data, buffer.count, values.data());
  }
  return values;
}

void StoreFloats(Span<const float> values, const Buffer& buffer) {
  if (values.empty()) return;
  if (buffer.type == DataType::kFloat32) {
    std::memcpy(buffer.data, values.data(), values.size() * sizeof(float));
  } else {
    reduce::NarrowFromFloat(buffer.type, values.data(), values.size(), buffer.data);
  }
}

}  // namespace cadre::hooks
