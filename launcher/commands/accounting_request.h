// Reads the command lines of `cadre history` and `cadre usage` into requests to a server. Pure.
#ifndef CADRE_LAUNCHER_COMMANDS_ACCOUNTING_REQUEST_H_
#define CADRE_LAUNCHER_COMMANDS_ACCOUNTING_REQUEST_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/flags/command.h"
#include "proto/accounting.pb.h"

namespace cadre::launcher {

// How many jobs `cadre history` shows if it is not told otherwise.
inline constexpr int kHistoryShown = 100;

// The flags of the two commands.
std::vector<Flag> HistoryFlags();
std::vector<Flag> UsageFlags();

// INVALID_ARGUMENT: a value is wrong; or what `this_user` returns, if --me needs it.
absl::StatusOr<v1::HistoryRequest> ReadHistory(
    const Parsed& parsed, absl::Time now, absl::TimeZone zone,
    const std::function<absl::StatusOr<std::string>()>& this_user);
absl::StatusOr<v1::UsageRequest> ReadUsage(const Parsed& parsed, absl::Time now,
                                           absl::TimeZone zone);

// Keeps only those jobs of the reply that the arguments name: "57" stands for a job and for an
// array, "57_3" for an element, "57.2" for a step.
void KeepNamed(const std::vector<std::string>& arguments, v1::HistoryReply* history);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_ACCOUNTING_REQUEST_H_
