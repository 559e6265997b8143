// Text for users about jobs that have ended and what they used: the tables of `cadre history` and
// `cadre usage`. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_ACCOUNTING_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_ACCOUNTING_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/accounting.pb.h"

namespace cadre::launcher {

// "57"; of an element of an array "57_3", of a step "57.2"; "-" if it has none.
std::string IdText(const v1::AccountedJob& job);

// A table with a line for each job, in the order of the reply.
std::string HistoryTable(const v1::HistoryReply& history, absl::TimeZone zone);

// "user", "node", "cause", "day". INVALID_ARGUMENT: the text is none of them.
absl::StatusOr<v1::UsageRequest::Grouping> ParseGrouping(absl::string_view text);

// A table with a line for each sum, and the total below. The hours that were lost and wasted are
// those of GPUs, or of CPUs if no job had a GPU.
std::string UsageTable(const v1::UsageReply& usage, v1::UsageRequest::Grouping by);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_ACCOUNTING_TEXT_H_
