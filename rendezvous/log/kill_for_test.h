// For tests of the server's death: kills this process at a chosen commit. One thread.
#ifndef CADRE_RENDEZVOUS_LOG_KILL_FOR_TEST_H_
#define CADRE_RENDEZVOUS_LOG_KILL_FOR_TEST_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/log/record_log.h"

namespace cadre {

// Holds the order in the environment of `cadre server`.
inline constexpr char kKillServerForTest[] = "CADRE_KILL_SERVER_FOR_TEST";

// `order` is "before|after RECORD", with the record's name in record.proto: SIGKILL before or after
// the first Append that holds such a record. INVALID_ARGUMENT for anything else.
absl::StatusOr<std::unique_ptr<RecordLog>> KillForTest(absl::string_view order,
                                                       std::unique_ptr<RecordLog> log);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_LOG_KILL_FOR_TEST_H_
