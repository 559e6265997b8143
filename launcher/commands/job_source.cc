#include "launcher/commands/job_source.h"

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "launcher/attach/control_client.h"
#include "launcher/spec/text_file.h"

namespace cadre::launcher {
namespace {

// Of a large job's timeline.
constexpr size_t kMaxJsonBytes = size_t{256} << 20;

absl::Status Broken(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, " is broken, or no file of cadre run: ", why));
}

absl::Status ReadJson(const std::string& path, google::protobuf::Message* message) {
  ASSIGN_OR_RETURN(const std::string content, ReadTextFile(path, kMaxJsonBytes));
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(content, message, options);
  if (parsed.ok()) return absl::OkStatus();
  // Lines of the file follow the first one.
  const std::string text(parsed.message());
  return Broken(path, absl::string_view(text).substr(0, text.find('\n')));
}

}  // namespace

std::vector<Flag> JobSourceFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"log-dir", "DIR", "Ask no server: read what a run that is over left there."});
  return flags;
}

absl::StatusOr<v1::Verdict> ReadVerdict(const std::string& directory) {
  v1::Verdict verdict;
  const std::string path = directory + "/verdict.json";
  const absl::Status read = ReadJson(path, &verdict);
  if (absl::IsNotFound(read)) {
    return absl::NotFoundError(absl::StrCat(
        path, " is not there: the job has not ended yet, had another --log-dir, or another name"));
  }
  RETURN_IF_ERROR(read);
  if (verdict.outcome() == v1::JOB_PHASE_UNSPECIFIED) return Broken(path, "it has no outcome");
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

}  // namespace cadre::launcher
