// Kills this process at a chosen commit of its server. One thread.
#ifndef CADRE_TESTS_FAULTS_KILL_AT_COMMIT_H_
#define CADRE_TESTS_FAULTS_KILL_AT_COMMIT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/log/record_log.h"

namespace cadre {

// A cadre program that reads an order from its environment (mortal_cadre.cc), in the runfiles.
inline constexpr char kMortalCadre[] = "tests/faults/mortal_cadre";
inline constexpr char kKillAtCommit[] = "CADRE_KILL_AT_COMMIT";

// Wraps a log. `order` is "before RECORD" or "after RECORD", with the record's name in
// record.proto: the process gets SIGKILL before or after the first Append that contains such a
// record. INVALID_ARGUMENT: the order is neither.
absl::StatusOr<std::unique_ptr<log::RecordLog>> KillAtCommit(absl::string_view order,
                                                             std::unique_ptr<log::RecordLog> log);

}  // namespace cadre

#endif  // CADRE_TESTS_FAULTS_KILL_AT_COMMIT_H_
