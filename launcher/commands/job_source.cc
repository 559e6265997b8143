#include "launcher/commands/job_source.h"

#include <errno.h>
#include <string.h>

#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "launcher/commands/control_client.h"

namespace cadre {
namespace {

absl::Status ReadJson(const std::string& path, google::protobuf::Message* message) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", strerror(errno)));
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(content.str(), message, options);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is no file of cadre run: ", std::string(parsed.message())));
}

}  // namespace

std::vector<Flag> JobSourceFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"log-dir", "DIR", "Ask no server: read what a run that is over left there."});
  return flags;
}

absl::StatusOr<v1::Verdict> ReadVerdict(const std::string& directory) {
  v1::Verdict verdict;
  RETURN_IF_ERROR(ReadJson(directory + "/verdict.json", &verdict));
  return verdict;
}

absl::StatusOr<v1::JobStatus> FindJob(const Settings& settings, const std::string& job) {
  const std::string log_dir = settings.GetOr("log-dir", "");
  if (log_dir.empty()) {
    ASSIGN_OR_RETURN(const auto client, ControlClient::Connect(settings));
    return client->Get(job);
  }
  v1::JobStatus status;
  status.set_name(job);
  const std::string directory = absl::StrCat(log_dir, "/", job);
  ASSIGN_OR_RETURN(*status.mutable_verdict(), ReadVerdict(directory));
  RETURN_IF_ERROR(ReadJson(directory + "/timeline.json", status.mutable_timeline()));
  status.set_phase(status.verdict().outcome());
  return status;
}

}  // namespace cadre
