#include "worker_runtime/hooks/hook_state.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace cadre::hooks {
namespace {

constexpr absl::string_view kMark = "cadre hook state 1: ";
// Of a foreign state, as much as an error quotes.
constexpr size_t kQuoted = 60;

std::string FirstLine(absl::string_view hook) { return absl::StrCat(kMark, hook, "\n"); }

absl::Status TooShort() {
  return absl::InvalidArgumentError("the state of the communication hook ends too early");
}

}  // namespace

std::vector<float>& Of(FloatsByParameter& floats, const GradientView& gradient) {
  std::vector<float>& found = floats[gradient.parameter];
  found.resize(gradient.count);
  return found;
}

absl::Status CheckSizes(const FloatsByParameter& floats, absl::Span<const BucketView> buckets) {
  for (const BucketView& bucket : buckets) {
    for (const GradientView& gradient : bucket.gradients) {
      const auto found = floats.find(gradient.parameter);
      if (found == floats.end() || found->second.size() == gradient.count) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", gradient.parameter, " has ", gradient.count,
                       " elements, and the state of the communication hook ", found->second.size(),
                       ": it was saved for another model"));
    }
  }
  return absl::OkStatus();
}

HookStateWriter::HookStateWriter(absl::string_view hook) : bytes_(FirstLine(hook)) {}

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

absl::Status HookStateReader::Expect(absl::string_view hook) {
  if (absl::ConsumePrefix(&rest_, FirstLine(hook))) return absl::OkStatus();
  const absl::string_view line = rest_.substr(0, std::min(rest_.find('\n'), kQuoted));
  return absl::InvalidArgumentError(absl::StrCat("this is not a state that the hook \"", hook,
                                                 "\" saved: it begins with \"",
                                                 absl::CHexEscape(line), "\""));
}

absl::StatusOr<uint64_t> HookStateReader::Number() {
  uint64_t number;
  if (rest_.size() < sizeof(number)) return TooShort();
  std::memcpy(&number, rest_.data(), sizeof(number));
  rest_.remove_prefix(sizeof(number));
  return number;
}

absl::StatusOr<FloatsByParameter> HookStateReader::Floats() {
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

absl::Status HookStateReader::End() const {
  if (rest_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the state of the communication hook has ", rest_.size(), " bytes too many"));
}

}  // namespace cadre::hooks
