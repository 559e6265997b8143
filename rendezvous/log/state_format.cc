#include "rendezvous/log/state_format.h"

#include "absl/strings/str_cat.h"

namespace cadre::log {

absl::Status CheckStateFormat(absl::string_view what, int64_t format, absl::string_view otherwise,
                              const ReadableFormats& reads) {
  if (format >= reads.oldest && format <= reads.newest) return absl::OkStatus();
  if (format > reads.newest) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " has format ", format, ", of a newer version of cadre; this one reads ",
                     "up to format ", reads.newest, ": run the newer one, or ", otherwise));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(what, " has format ", format, ", of an older version of cadre; this one reads ",
                   "format ", reads.oldest, reads.newest > reads.oldest ? " and later" : "",
                   ": run the version that wrote it, or ", otherwise));
}

}  // namespace cadre::log
