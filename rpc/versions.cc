#include "rpc/versions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "base/version.h"

namespace cadre::rpc {
namespace {

constexpr uint32_t kUnversionedMinor = 2;
constexpr uint32_t kBatchJobsSinceMinor = 4;
constexpr size_t kTextBytesMax = 32;

bool IsOlder(const v1::Version& a, const v1::Version& b) {
  return a.major() != b.major() ? a.major() < b.major() : a.minor() < b.minor();
}

}  // namespace

v1::Version ThisVersion() {
  v1::Version version;
  version.set_major(kMajorVersion);
  version.set_minor(kMinorVersion);
  version.set_program(kVersion);
  return version;
}

v1::Version VersionOfUnversionedPeer() {
  v1::Version version;
  version.set_minor(kUnversionedMinor);
  return version;
}

std::string VersionText(const v1::Version& version) {
  return version.program().empty() ? absl::StrCat(version.major(), ".", version.minor())
                                   : OneLine(version.program(), kTextBytesMax);
}

std::string OtherVersionText(const v1::Version& version) {
  const std::string text = VersionText(version);
  return text == kVersion ? "" : text;
}

bool KnowsBatchJobs(const v1::Version& version) {
  return version.major() > 0 || version.minor() >= kBatchJobsSinceMinor;
}

absl::Status CheckVersions(absl::string_view here, const v1::Version& own, absl::string_view there,
                           const v1::Version& other) {
  const bool same_major = own.major() == other.major();
  const uint32_t low = std::min(own.minor(), other.minor());
  const uint32_t high = std::max(own.minor(), other.minor());
  if (same_major && high - low <= 1) return absl::OkStatus();
  const bool here_is_older = IsOlder(own, other);
  const v1::Version& newer = here_is_older ? other : own;
  return absl::UnavailableError(
      absl::StrCat(here, " is of Cadre ", VersionText(own), ", ", there, " of ", VersionText(other),
                   ", and only minor versions next to each other work together: upgrade ",
                   here_is_older ? here : there, " to ", newer.major(), ".",
                   same_major ? high - 1 : newer.minor(), " or later"));
}

}  // namespace cadre::rpc
