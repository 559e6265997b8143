#include "rendezvous/state/policy.h"

#include <algorithm>
#include <csignal>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/duration.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::state {
namespace {

absl::Duration OrDefault(const google::protobuf::Duration& value, absl::Duration otherwise) {
  const absl::Duration duration = FromProto(value);
  return duration > absl::ZeroDuration() ? duration : otherwise;
}

absl::Status CheckDuration(absl::string_view field, const google::protobuf::Duration& value) {
  if (value.seconds() < 0 || value.nanos() < 0 || value.nanos() > 999999999 ||
      value.seconds() > kMaxDurationSeconds) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " must be between 0 and 10 years; got ", value.seconds(), "s"));
  }
  return absl::OkStatus();
}

absl::Status CheckText(absl::string_view field, absl::string_view text) {
  if (text.size() > kMaxNodeTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, " has ", text.size(), " bytes; at most ",
                                                   kMaxNodeTextBytes, " are allowed"));
  }
  if (HasControlCharacters(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " holds a control character: \"", OneLine(text, 64), "\""));
  }
  return absl::OkStatus();
}

absl::Status Differs(absl::string_view field, absl::string_view job, absl::string_view joining) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " differs: the job has ", OneLine(job, 300), ", this node has ",
                   OneLine(joining, 300), "; give every node the same, or another job name"));
}

absl::Status CheckNames(absl::string_view field,
                        const google::protobuf::RepeatedPtrField<std::string>& names) {
  if (names.size() > static_cast<int>(kMaxPlacementNames)) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, " has ", names.size(), " entries; at most ", kMaxPlacementNames, " are allowed"));
  }
  for (const std::string& name : names) {
    if (name.empty()) return absl::InvalidArgumentError(absl::StrCat(field, " has an empty entry"));
    RETURN_IF_ERROR(CheckText(field, name));
  }
  return absl::OkStatus();
}

absl::Status CheckQueueOptions(const v1::QueueOptions& queue) {
  for (const int64_t at : {queue.begin_unix_ms(), queue.deadline_unix_ms()}) {
    if (at < 0 || at > kMaxUnixMs) {
      return absl::InvalidArgumentError(
          "queue.begin and queue.deadline must be between the years 1970 and 9999");
    }
  }
  if (queue.dependencies_size() > static_cast<int>(kMaxDependencies)) {
    return absl::InvalidArgumentError(absl::StrCat("queue.dependencies has ",
                                                   queue.dependencies_size(), " entries; at most ",
                                                   kMaxDependencies, " are allowed"));
  }
  for (const v1::Dependency& dependency : queue.dependencies()) {
    const bool names_job = dependency.job() != 0;
    if (dependency.kind() == v1::Dependency::KIND_UNSPECIFIED ||
        names_job == (dependency.kind() == v1::Dependency::SINGLETON)) {
      return absl::InvalidArgumentError(
          "each of queue.dependencies needs a kind, and all but singleton the id of a job");
    }
    RETURN_IF_ERROR(CheckDuration("the delay of a dependency", dependency.delay()));
  }
  return absl::OkStatus();
}

std::string NodesText(const v1::NodeRange& nodes) {
  return nodes.min() == nodes.max() ? absl::StrCat(nodes.min())
                                    : absl::StrCat(nodes.min(), "..", nodes.max());
}

std::string ScaleUpText(v1::ElasticPolicy::ScaleUp scale_up) {
  return absl::AsciiStrToLower(v1::ElasticPolicy::ScaleUp_Name(scale_up));
}

}  // namespace

Policy PolicyOf(const v1::JobSpec& spec) {
  Policy policy;
  // A batch job's script runs on one node; the others are for steps.
  policy.min = spec.has_batch() ? 1 : std::max<uint32_t>(spec.nodes().min(), 1);
  policy.max = spec.has_batch() ? 1 : std::max(spec.nodes().max(), policy.min);
  policy.unit = spec.has_batch() ? 1 : std::max<uint32_t>(spec.elastic().unit(), 1);
  policy.settle = OrDefault(spec.rendezvous().settle(), policy.settle);
  policy.join_timeout = OrDefault(spec.rendezvous().join_timeout(), policy.join_timeout);
  policy.start_timeout = OrDefault(spec.timeouts().start(), policy.start_timeout);
  policy.stop_grace = OrDefault(spec.timeouts().stop_grace(), policy.stop_grace);
  policy.total_timeout = OrDefault(spec.timeouts().total(), policy.total_timeout);
  policy.restart_max = spec.restart().max();
  policy.restart_window = OrDefault(spec.restart().window(), policy.restart_window);
  // A backoff of 0 is valid: restart without a wait.
  const v1::RestartPolicy& restart = spec.restart();
  if (restart.has_backoff_min()) policy.backoff_min = FromProto(restart.backoff_min());
  if (restart.has_backoff_max()) policy.backoff_max = FromProto(restart.backoff_max());
  policy.backoff_max = std::max(policy.backoff_max, policy.backoff_min);
  for (const int cause : spec.restart().on()) {
    policy.retried.insert(static_cast<v1::FailureCause>(cause));
  }
  if (policy.retried.empty()) {
    policy.retried = {v1::CRASH,     v1::HANG,      v1::OUT_OF_MEMORY,
                      v1::NODE_LOST, v1::PREEMPTED, v1::START_TIMEOUT};
  }
  policy.never_exit_codes.insert(spec.restart().never_exit_codes().begin(),
                                 spec.restart().never_exit_codes().end());
  policy.never_exit_codes.insert(kExitNeverRestart);
  policy.in_place = spec.restart().in_place();
  policy.requeue = !spec.restart().has_requeue() || spec.restart().requeue();
  policy.warning = FromProto(spec.timeouts().warning());
  policy.warning_signal =
      spec.timeouts().warning_signal() == 0 ? SIGTERM : spec.timeouts().warning_signal();
  if (spec.elastic().scale_up() != v1::ElasticPolicy::SCALE_UP_UNSPECIFIED) {
    policy.scale_up = spec.elastic().scale_up();
  }
  return policy;
}

bool IsSignal(int signal) { return signal > 0 && signal < NSIG; }

absl::Status CheckPlacement(const v1::Placement& placement) {
  RETURN_IF_ERROR(CheckNames("placement.nodes", placement.nodes()));
  RETURN_IF_ERROR(CheckNames("placement.exclude", placement.exclude()));
  return CheckNames("placement.labels", placement.labels());
}

bool IsJobName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxJobNameBytes || name[0] == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

absl::Status CheckNodeName(absl::string_view name) {
  const bool good = !name.empty() && name.size() <= kMaxNodeTextBytes &&
                    absl::ascii_isalnum(name[0]) &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("node name ", Quoted(name), " is not valid: use 1 to ", kMaxNodeTextBytes,
                   " of a-z, A-Z, 0-9, '.', '-' and '_', starting with a letter or a digit"));
}

absl::Status CheckSpec(const v1::JobSpec& spec) {
  if (!IsJobName(spec.name())) {
    return absl::InvalidArgumentError(
        absl::StrCat("job name \"", OneLine(spec.name(), 80),
                     "\" is not valid: use 1 to 63 of a-z, 0-9 and -, not starting with -"));
  }
  if (spec.ByteSizeLong() > kMaxSpecBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the spec has ", spec.ByteSizeLong(), " bytes; at most ", kMaxSpecBytes, " are allowed"));
  }
  const uint32_t min = spec.nodes().min(), max = spec.nodes().max();
  if (min < 1 || max < min || max > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "nodes must be min..max with 1 <= min <= max <= ", kMaxNodes, "; got ", min, "..", max));
  }
  if (spec.spares() > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("spares: at most ", kMaxNodes, " are allowed; got ", spec.spares()));
  }
  const Policy policy = PolicyOf(spec);
  if (policy.SizeFor(max) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("no multiple of elastic.unit ", policy.unit,
                                                   " lies in nodes ", NodesText(spec.nodes())));
  }
  RETURN_IF_ERROR(CheckText("role", spec.role()));
  RETURN_IF_ERROR(CheckDuration("rendezvous.join_timeout", spec.rendezvous().join_timeout()));
  RETURN_IF_ERROR(CheckDuration("rendezvous.settle", spec.rendezvous().settle()));
  RETURN_IF_ERROR(CheckDuration("timeouts.start", spec.timeouts().start()));
  RETURN_IF_ERROR(CheckDuration("timeouts.stop_grace", spec.timeouts().stop_grace()));
  RETURN_IF_ERROR(CheckDuration("timeouts.total", spec.timeouts().total()));
  RETURN_IF_ERROR(CheckDuration("timeouts.warning", spec.timeouts().warning()));
  if (!IsSignal(spec.timeouts().warning_signal()) && spec.timeouts().warning_signal() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeouts.warning_signal must be a signal that a "
                     "program can handle; got ",
                     spec.timeouts().warning_signal()));
  }
  RETURN_IF_ERROR(CheckPlacement(spec.placement()));
  RETURN_IF_ERROR(CheckQueueOptions(spec.queue()));
  RETURN_IF_ERROR(CheckDuration("restart.window", spec.restart().window()));
  RETURN_IF_ERROR(CheckDuration("restart.backoff_min", spec.restart().backoff_min()));
  return CheckDuration("restart.backoff_max", spec.restart().backoff_max());
}

absl::Status CheckJoin(const v1::Join& join) {
  if (join.node().empty()) return absl::InvalidArgumentError("node name is empty");
  RETURN_IF_ERROR(CheckText("node name", join.node()));
  RETURN_IF_ERROR(CheckText("host", join.host()));
  RETURN_IF_ERROR(CheckText("address", join.address()));
  RETURN_IF_ERROR(CheckText("master_addr", join.master_addr()));
  RETURN_IF_ERROR(CheckText("versions.python", join.versions().python()));
  RETURN_IF_ERROR(CheckText("versions.torch", join.versions().torch()));
  RETURN_IF_ERROR(CheckText("role", join.spec().role()));
  if (join.slots() < 1 || join.slots() > kMaxSlotsPerNode) {
    return absl::InvalidArgumentError(absl::StrCat("node ", join.node(), " offers ", join.slots(),
                                                   " slots; 1 to ", kMaxSlotsPerNode,
                                                   " are allowed"));
  }
  if (join.held_port() > 65535 || join.master_port() > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("node ", join.node(),
                                                   ": a port is at most 65535; got ",
                                                   std::max(join.held_port(), join.master_port())));
  }
  RETURN_IF_ERROR(CheckDuration("adopt_timeout", join.adopt_timeout()));
  if (join.expected_nodes_size() > static_cast<int>(kMaxNodes)) {
    return absl::InvalidArgumentError(absl::StrCat("expected_nodes has ",
                                                   join.expected_nodes_size(), " names; at most ",
                                                   kMaxNodes, " are allowed"));
  }
  for (const std::string& name : join.expected_nodes()) {
    RETURN_IF_ERROR(CheckText("expected_nodes", name));
  }
  return absl::OkStatus();
}

absl::Status CheckSameJob(const v1::JobSpec& job, const v1::JobSpec& joining) {
  if (job.nodes().min() != joining.nodes().min() || job.nodes().max() != joining.nodes().max()) {
    return Differs("nodes", NodesText(job.nodes()), NodesText(joining.nodes()));
  }
  if (job.restart().max() != joining.restart().max()) {
    return Differs("restart.max", absl::StrCat(job.restart().max()),
                   absl::StrCat(joining.restart().max()));
  }
  if (job.restart().in_place() != joining.restart().in_place()) {
    return Differs("restart.in_place", job.restart().in_place() ? "true" : "false",
                   joining.restart().in_place() ? "true" : "false");
  }
  // A node that sets no scale-up policy accepts the job's.
  const v1::ElasticPolicy::ScaleUp wanted = joining.elastic().scale_up();
  const v1::ElasticPolicy::ScaleUp scale_up = PolicyOf(job).scale_up;
  if (wanted != v1::ElasticPolicy::SCALE_UP_UNSPECIFIED && wanted != scale_up) {
    return Differs("elastic.scale_up", ScaleUpText(scale_up), ScaleUpText(wanted));
  }
  return absl::OkStatus();
}

}  // namespace cadre::state
