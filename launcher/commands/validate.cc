// cadre validate: reads a spec and says what is wrong with it.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "launcher/commands/commands.h"
#include "launcher/slurm/job_script.h"
#include "launcher/spec/reader.h"
#include "rendezvous/state/policy.h"

namespace cadre::launcher {
namespace {

std::string Workers(const v1::WorkersPerNode& workers) {
  switch (workers.kind()) {
    case v1::WorkersPerNode::GPU:
      return "one worker per GPU";
    case v1::WorkersPerNode::CPU:
      return "one worker per core";
    case v1::WorkersPerNode::AUTO:
      return "one worker per GPU, or per core where there is none";
    default:
      return Count(workers.count(), "worker");
  }
}

int Run(const Parsed& parsed) {
  absl::StatusOr<v1::JobSpec> spec = ReadSpecFile(parsed.rest[0]);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  FillSpecDefaults(*spec);
  v1::JobSpec named = *spec;
  // `cadre run` would name it by the program.
  if (named.name().empty()) named.set_name("job");
  const absl::Status taken = state::CheckSpec(named);
  if (!taken.ok()) {
    return Fail(kExitBadSpec, SpecErrorAt(parsed.rest[0], taken.message()).message());
  }
  if (spec->has_slurm()) {
    const absl::StatusOr<std::string> script = SlurmScript(parsed.rest[0], *spec, 0);
    if (!script.ok()) return Fail(kExitBadSpec, script.status().message());
  }
  const v1::NodeRange& nodes = spec->nodes();
  return Print(absl::StrCat(
      parsed.rest[0], ": ok (", spec->command(0), " on ",
      nodes.min() == nodes.max() ? absl::StrCat(nodes.min())
                                 : absl::StrCat(nodes.min(), " to ", nodes.max()),
      nodes.max() == 1 ? " node, " : " nodes, ", Workers(spec->workers_per_node()), " each)\n"));
}

}  // namespace

Command ValidateCommand() {
  Command command;
  command.name = "validate";
  command.summary = "Check a job spec.";
  command.positionals = "FILE";
  command.min_positionals = command.max_positionals = 1;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
