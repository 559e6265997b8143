#include "launcher/commands/accounting_request.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_filter.h"
#include "launcher/display/accounting_text.h"
#include "launcher/display/output_format.h"
#include "launcher/spec/queue_values.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

constexpr char kTimes[] = "2026-11-29, 2026-11-29T12:30, 12:30 or now-7days";

// `since`: the default of --since, in words.
std::vector<Flag> WithCommonFlags(std::vector<Flag> flags, const std::string& since) {
  flags.push_back({"since", "TIME", absl::StrCat("From then on: ", kTimes, " [", since, "].")});
  flags.push_back({"until", "TIME", "Until then [now]."});
  flags.push_back({"json", "", "The same as --output json."});
  flags.push_back(OutputFlag());
  for (Flag& flag : ControlFlags()) flags.push_back(std::move(flag));
  return flags;
}

// 0: the flag was not given.
absl::StatusOr<int64_t> ReadTime(const Parsed& parsed, const std::string& flag, absl::Time now,
                                 absl::TimeZone zone) {
  const std::optional<std::string> text = parsed.Get(flag);
  if (!text.has_value()) return 0;
  const absl::StatusOr<absl::Time> time = ParseSlurmDate(*text, now, zone);
  if (time.ok()) return std::max<int64_t>(absl::ToUnixMillis(*time), 1);
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", time.status().message()));
}

bool IsId(absl::string_view text) {
  return !text.empty() && absl::ascii_isdigit(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isdigit(c) || c == '_' || c == '.'; });
}

// "57_3" and "57.2" are in what is kept of the job or array 57.
absl::Status AddJobs(const std::vector<std::string>& arguments, v1::HistoryRequest* request) {
  for (const std::string& text : arguments) {
    if (!IsId(text)) {
      request->add_names(text);
      continue;
    }
    const size_t digits = std::min(text.find_first_of("_."), text.size());
    uint64_t id = 0;
    if (!absl::SimpleAtoi(absl::string_view(text).substr(0, digits), &id) || id == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected the id of a job, as 57, 57_3 or 57.2, got ", Quoted(text)));
    }
    request->add_ids(id);
    if (absl::StrContains(text, '.')) request->set_steps(true);
  }
  if (request->ids_size() == 0 || request->names_size() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", arguments[0], "' and the others: give either ids of jobs or names"));
}

}  // namespace

std::vector<Flag> HistoryFlags() {
  std::vector<Flag> flags;
  for (Flag& flag : JobFilterFlags()) {
    if (flag.name != "node") flags.push_back(std::move(flag));
  }
  flags.push_back({"name", "NAME[,...]", "Only jobs of these names."});
  flags.push_back({"steps", "", "The steps of batch jobs too."});
  flags.push_back({"limit", "N", absl::StrCat("The last N jobs [", kHistoryShown, "].")});
  return WithCommonFlags(std::move(flags), "as far back as they are kept");
}

std::vector<Flag> UsageFlags() {
  std::vector<Flag> flags = {{"by", "user|node|cause|day", "What is summed up [user]."}};
  return WithCommonFlags(std::move(flags), "the first of this month");
}

absl::StatusOr<v1::HistoryRequest> ReadHistory(
    const Parsed& parsed, absl::Time now, absl::TimeZone zone,
    const std::function<absl::StatusOr<std::string>()>& this_user) {
  v1::HistoryRequest request;
  ASSIGN_OR_RETURN(const JobFilter filter, ReadJobFilter(parsed, this_user));
  for (const std::string& user : filter.users) request.add_users(user);
  for (const v1::JobPhase phase : filter.states) request.add_phases(phase);
  RETURN_IF_ERROR(AddJobs(parsed.rest, &request));
  if (const std::optional<std::string> names = parsed.Get("name")) {
    for (const absl::string_view name : absl::StrSplit(*names, ',', absl::SkipWhitespace())) {
      request.add_names(std::string(name));
    }
  }
  if (parsed.Has("steps")) request.set_steps(true);
  // Jobs that are named are all shown.
  const std::string limit = parsed.GetOr("limit", absl::StrCat(kHistoryShown));
  const absl::StatusOr<uint32_t> count = ParseCount(limit);
  if (!count.ok() || *count == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit: expected a number from 1, got ", Quoted(limit)));
  }
  if (request.ids_size() == 0 || parsed.Has("limit")) request.set_limit(*count);
  ASSIGN_OR_RETURN(const int64_t since, ReadTime(parsed, "since", now, zone));
  ASSIGN_OR_RETURN(const int64_t until, ReadTime(parsed, "until", now, zone));
  request.set_since_unix_ms(since);
  request.set_until_unix_ms(until);
  return request;
}

absl::StatusOr<v1::UsageRequest> ReadUsage(const Parsed& parsed, absl::Time now,
                                           absl::TimeZone zone) {
  v1::UsageRequest request;
  const absl::StatusOr<v1::UsageRequest::Grouping> by = ParseGrouping(parsed.GetOr("by", "user"));
  if (!by.ok()) return absl::InvalidArgumentError(absl::StrCat("--by: ", by.status().message()));
  request.set_by(*by);
  ASSIGN_OR_RETURN(const int64_t since, ReadTime(parsed, "since", now, zone));
  ASSIGN_OR_RETURN(const int64_t until, ReadTime(parsed, "until", now, zone));
  const absl::Time month = absl::FromCivil(absl::ToCivilMonth(now, zone), zone);
  request.set_since_unix_ms(since == 0 ? absl::ToUnixMillis(month) : since);
  request.set_until_unix_ms(until);
  request.set_zone_offset_s(zone.At(now).offset);
  return request;
}

void KeepNamed(const std::vector<std::string>& arguments, v1::HistoryReply* history) {
  // Names are for the server to tell.
  if (std::none_of(arguments.begin(), arguments.end(), IsId)) return;
  const auto is_named = [&](const v1::AccountedJob& job) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& text) {
      const bool exact = absl::StrContains(text, '_') || absl::StrContains(text, '.');
      return exact ? text == IdText(job)
                   : text == absl::StrCat(job.id()) || text == absl::StrCat(job.array()) ||
                         text == absl::StrCat(job.step_of());
    });
  };
  auto* jobs = history->mutable_jobs();
  jobs->erase(std::remove_if(jobs->begin(), jobs->end(),
                             [&](const v1::AccountedJob& job) { return !is_named(job); }),
              jobs->end());
}

}  // namespace cadre::launcher
