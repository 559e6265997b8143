#include "bench/floods/slurm_target.h"

#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "bench/floods/target.h"

namespace cadre {
namespace {

// In the network of RunAmongThemselves, where nothing else listens.
constexpr int kPort = 6817;
constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr size_t kScriptBytes = size_t{500} << 10;
constexpr int kMany = 64;
constexpr int kManyHalfMessages = 1024;
// Of a message: its length, in 4 bytes, of which the rest does not come.
constexpr char kHalfMessage[] = "\x00\x10\x00\x00\x25\x80\x00\x00";
constexpr size_t kGarbageBytes = 1024;

}  // namespace

absl::Status SlurmTarget::Start() {
  RETURN_IF_ERROR(cluster_.Start());
  pid_ = cluster_.slurmctld();
  std::ofstream(cluster_.directory() + "/job.sh") << "#!/bin/sh\nexec sleep 100000\n";
  std::ofstream(cluster_.directory() + "/large.sh")
      << "#!/bin/sh\n#" << std::string(kScriptBytes, 'x') << "\n";
  std::string output;
  RETURN_IF_ERROR(RunCommand(
      {"sbatch", "--parsable", "-n", "1", "-o", "/dev/null", cluster_.directory() + "/job.sh"},
      kStartTimeout, &output));
  job_ = std::string(absl::StripSuffix(output, "\n"));
  if (cluster_.AskUntil({"squeue", "-h", "-o", "%t", "-j", job_}, "R", kStartTimeout) != "R\n") {
    return absl::InternalError("the job does not run");
  }
  return absl::OkStatus();
}

absl::Status SlurmTarget::Launch(int, absl::Duration timeout) {
  return RunCommand({"srun", "-n", "1", "/bin/true"}, timeout);
}

absl::Status SlurmTarget::KeptCall(absl::Duration) { return absl::UnimplementedError(""); }

absl::Status SlurmTarget::NewCall(absl::Duration timeout) {
  return RunCommand({"squeue", "-h"}, timeout);
}

std::vector<std::string> SlurmTarget::Lost() {
  std::vector<std::string> lost;
  const std::string log = ReadFileOrEmpty(cluster_.directory() + "/slurmctld.log");
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    for (const char* sign : {"not responding", "setting DOWN", "Requeuing"}) {
      if (absl::StrContains(line, sign)) lost.push_back(std::string(line));
    }
  }
  std::string state;
  const absl::Status asked =
      RunCommand({"squeue", "-h", "-o", "%t", "-j", job_}, kStartTimeout, &state);
  if (!asked.ok()) lost.push_back(absl::StrCat("no answer afterwards: ", asked.message()));
  if (asked.ok() && state != "R\n") lost.push_back("the job does not run any more");
  return lost;
}

std::vector<FloodCase> SlurmTarget::Cases() const {
  std::vector<FloodCase> cases;
  FloodCase one;
  one.transport = "clear";
  one.options.port = kPort;
  const auto append = [&](const std::string& name, FloodKind kind, const std::string& bytes) {
    one.name = name;
    one.options.kind = kind;
    one.options.message = [bytes](uint64_t) { return bytes; };
    AppendFromFewAndMany(one, &cases);
  };
  append(FloodKindText(FloodKind::kConnectionsHeld), FloodKind::kConnectionsHeld, "");
  append(FloodKindText(FloodKind::kConnectionsClosed), FloodKind::kConnectionsClosed, "");
  append("half messages", FloodKind::kBytes, std::string(kHalfMessage, sizeof(kHalfMessage) - 1));
  // More than slurmctld has threads.
  one.options.connections = kManyHalfMessages;
  one.from = absl::StrCat(kManyHalfMessages, " connections");
  cases.push_back(one);
  append("garbage", FloodKind::kBytesAndClosed, std::string(kGarbageBytes, '\x7f'));
  FloodCase programs;
  programs.token = "a user";
  programs.programs = kMany;
  programs.from = absl::StrCat(kMany, " processes");
  programs.name = "squeue";
  programs.program = {"squeue"};
  cases.push_back(programs);
  programs.name = "submissions of 500 KiB";
  // None can begin: there are two nodes.
  programs.program = {"sbatch", "-H", "-o", "/dev/null", cluster_.directory() + "/large.sh"};
  cases.push_back(programs);
  return cases;
}

}  // namespace cadre
