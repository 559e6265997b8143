// A verdict from the file of a past run or from a server: whatever workers put into it, its text
// contains nothing that a terminal obeys.
#include <string>

#include "absl/strings/ascii.h"
#include "base/check.h"
#include "google/protobuf/util/json_util.h"
#include "launcher/display/verdict_text.h"
#include "proto/job.pb.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cadre;
  v1::Verdict verdict;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      std::string(fuzz::Text(data, size)), &verdict, options);
  if (!parsed.ok()) return 0;
  launcher::VerdictStyle style, without_logs;
  style.log_dir = "logs";
  style.zone = without_logs.zone = absl::UTCTimeZone();
  const std::string text = launcher::OutcomeText(verdict) + launcher::VerdictText(verdict, style) +
                           launcher::VerdictDetails(verdict, without_logs) +
                           launcher::SuccessText(verdict, v1::Timeline(), false);
  for (const char c : text) CADRE_CHECK(c == '\n' || !absl::ascii_iscntrl(c));
  return 0;
}
