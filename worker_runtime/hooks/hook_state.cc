#include "worker_runtime/hooks/hook_state.h"

#include <cstring>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/absl_types.h"

namespace cadre::hooks {
namespace {

constexpr char kMark[] = "cadre hook state 1: ";
// Of a foreign state, as much as an error quotes.
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

}  // namespace cadre::hooks
