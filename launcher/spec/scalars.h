// Parses text into typed values: durations, sizes, ranges. Used for the job spec and for flags.
// Pure. Every error says what was expected.
#ifndef CADRE_LAUNCHER_SPEC_SCALARS_H_
#define CADRE_LAUNCHER_SPEC_SCALARS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/failure.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// "90s", "10m", "1h30m", "500ms", "0s": units h, m, s, ms, each at most once, largest first.
absl::StatusOr<absl::Duration> ParseDuration(absl::string_view text);
// "1s..1m", or one duration for both ends.
absl::StatusOr<std::pair<absl::Duration, absl::Duration>> ParseDurationRange(
    absl::string_view text);
// Decimal digits only.
absl::StatusOr<uint32_t> ParseCount(absl::string_view text);
absl::StatusOr<uint32_t> ParseExitCode(absl::string_view text);
// A Python module's name: "torch.distributed".
absl::StatusOr<std::string> ParseModuleName(absl::string_view text);
// "true" or "false".
absl::StatusOr<bool> ParseBoolean(absl::string_view text);
// "512MiB", "8GiB", "1KiB", "100B", "2TiB".
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);
// "2", "2..4" or torchrun's "2:4".
absl::StatusOr<v1::NodeRange> ParseNodeRange(absl::string_view text);
// A number from 1, or gpu, cpu, auto.
absl::StatusOr<v1::WorkersPerNode> ParseWorkersPerNode(absl::string_view text);
// "crash", "hang", "out_of_memory", "node_lost", "preempted", ...
absl::StatusOr<v1::FailureCause> ParseFailureCause(absl::string_view text);
absl::StatusOr<v1::ElasticPolicy::ScaleUp> ParseScaleUp(absl::string_view text);
// "USR1", "SIGUSR1"; only signals that can be caught.
absl::StatusOr<int> ParseSignal(absl::string_view text);
// The name of a cluster's node; and what a job asks of a node's labels: "rack=7", "rack", "7", and
// alternatives with '|'.
absl::StatusOr<std::string> ParseNodeName(absl::string_view text);
absl::StatusOr<std::string> ParseNodeLabel(absl::string_view text);
// Values for a line of an sbatch script, which sbatch splits as a shell does: a partition or an
// account; and a whole sbatch option, which is used as it is.
absl::StatusOr<std::string> ParseSlurmName(absl::string_view text);
absl::StatusOr<std::string> ParseSbatchOption(absl::string_view text);
// A variable that a job may set for its workers: not one that Cadre sets for each.
absl::Status CheckVariableName(absl::string_view name);
// [a-z0-9][a-z0-9-]{0,62}
absl::Status CheckJobName(absl::string_view name);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SPEC_SCALARS_H_
