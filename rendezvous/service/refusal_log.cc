#include "rendezvous/service/refusal_log.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::service {

std::optional<std::string> RefusalLog::Line(MonoTime now, const std::string& address,
                                            const std::string& why) {
  for (auto it = said_.begin(); it != said_.end();) {
    it = now - it->second < kRefusalSaidAgain ? std::next(it) : said_.erase(it);
  }
  std::string line = absl::StrCat("refused ", address, ": ", why);
  if (said_.size() >= kRefusalsSaid || !said_.emplace(line, now).second) {
    ++unsaid_;
    return std::nullopt;
  }
  const uint64_t unsaid = std::exchange(unsaid_, 0);
  if (unsaid > 0) absl::StrAppend(&line, " (and ", unsaid, " more before)");
  return line;
}

}  // namespace cadre::service
