#include "launcher/display/accounting_text.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "launcher/display/output_format.h"
#include "rpc/job_progress.h"

namespace cadre::launcher {
namespace {

constexpr char kNothing[] = "-";

std::string TimeText(int64_t unix_ms, absl::TimeZone zone) {
  if (unix_ms == 0) return kNothing;
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), zone);
}

std::string ElapsedText(const v1::AccountedJob& job) {
  if (job.began_unix_ms() == 0 || job.ended_unix_ms() < job.began_unix_ms()) return kNothing;
  return ShortDuration(absl::Milliseconds(job.ended_unix_ms() - job.began_unix_ms()));
}

std::string CauseText(const v1::AccountedJob& job) {
  if (job.cause() == v1::FAILURE_CAUSE_UNSPECIFIED || job.phase() == v1::SUCCEEDED) return kNothing;
  return absl::AsciiStrToLower(v1::FailureCause_Name(job.cause()));
}

// Hours: "0.05", "123.4".
std::string Hours(int64_t us) {
  constexpr double kHour = 3600e6;
  const double hours = static_cast<double>(us) / kHour;
  return hours < 10 ? absl::StrFormat("%.2f", hours) : absl::StrFormat("%.1f", hours);
}

std::string KeyText(const v1::UsageSum& sum, v1::UsageRequest::Grouping by) {
  return sum.key().empty() && by == v1::UsageRequest::USER ? "(administrator)" : sum.key();
}

}  // namespace

std::string IdText(const v1::AccountedJob& job) {
  if (job.step_of() != 0) return absl::StrCat(job.step_of(), ".", job.step());
  if (job.array() != 0) return absl::StrCat(job.array(), "_", job.array_index());
  return job.id() == 0 ? kNothing : absl::StrCat(job.id());
}

std::string HistoryTable(const v1::HistoryReply& history, absl::TimeZone zone) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::AccountedJob& job : history.jobs()) {
    rows.push_back({IdText(job), job.name(), job.user().empty() ? kNothing : job.user(),
                    rpc::PhaseName(job.phase()), TimeText(job.submitted_unix_ms(), zone),
                    TimeText(job.began_unix_ms(), zone), ElapsedText(job),
                    job.nodes().empty() ? kNothing : job.nodes(), absl::StrCat(job.gpus()),
                    CauseText(job)});
  }
  return FormatTable(
      {"ID", "NAME", "USER", "STATE", "SUBMITTED", "BEGAN", "ELAPSED", "NODES", "GPUS", "CAUSE"},
      rows);
}

absl::StatusOr<v1::UsageRequest::Grouping> ParseGrouping(absl::string_view text) {
  if (text == "user") return v1::UsageRequest::USER;
  if (text == "node") return v1::UsageRequest::NODE;
  if (text == "cause") return v1::UsageRequest::CAUSE;
  if (text == "day") return v1::UsageRequest::DAY;
  return absl::InvalidArgumentError(
      absl::StrCat("expected user, node, cause or day, got ", Quoted(text)));
}

std::string UsageTable(const v1::UsageReply& usage, v1::UsageRequest::Grouping by) {
  const bool gpus = usage.total().gpu_us() != 0;
  const auto lost = [&](const v1::UsageSum& sum) {
    return Hours(gpus ? sum.lost_gpu_us() : sum.lost_cpu_us());
  };
  const auto wasted = [&](const v1::UsageSum& sum) {
    return Hours(gpus ? sum.wasted_gpu_us() : sum.wasted_cpu_us());
  };
  const std::string lost_title = gpus ? "GPU-HOURS LOST" : "CPU-HOURS LOST";
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& key, const v1::UsageSum& sum) {
    if (by == v1::UsageRequest::CAUSE) {
      rows.push_back(
          {key, absl::StrCat(sum.failures()), absl::StrCat(sum.failed()), lost(sum), wasted(sum)});
      return;
    }
    std::vector<std::string> row = {key, absl::StrCat(sum.jobs()), absl::StrCat(sum.failed())};
    if (gpus) row.push_back(Hours(sum.gpu_us()));
    row.push_back(lost(sum));
    row.push_back(wasted(sum));
    row.push_back(Hours(sum.cpu_us()));
    rows.push_back(std::move(row));
  };
  if (by == v1::UsageRequest::CAUSE) {
    header = {"CAUSE", "RECOVERED", "FAILED JOBS", lost_title, "WASTED"};
  } else {
    header = {by == v1::UsageRequest::NODE  ? "NODE"
              : by == v1::UsageRequest::DAY ? "DAY"
                                            : "USER",
              "JOBS", "FAILED"};
    if (gpus) header.push_back("GPU-HOURS");
    for (const char* const title : {gpus ? "LOST" : "CPU-HOURS LOST", "WASTED", "CPU-HOURS"}) {
      header.push_back(title);
    }
  }
  for (const v1::UsageSum& sum : usage.sums()) add(KeyText(sum, by), sum);
  add("total", usage.total());
  return FormatTable(header, rows);
}

}  // namespace cadre::launcher
