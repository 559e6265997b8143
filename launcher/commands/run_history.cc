#include "launcher/commands/run_history.h"

#include <unistd.h>

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/run_files.h"
#include "google/protobuf/util/json_util.h"
#include "proto/job.pb.h"

namespace cadre::launcher {
namespace {

// A new file in the place of the old one; none where the run has no directory here.
void WriteJson(const std::string& path, const google::protobuf::Message& message) {
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json).ok()) return;
  agent::WriteFile(path, absl::StrCat(json, "\n")).IgnoreError();
}

v1::JobUsage UsageOf(host::CoreThread& core, const std::string& job) {
  const auto promise = std::make_shared<std::promise<v1::JobUsage>>();
  std::future<v1::JobUsage> answer = promise->get_future();
  core.AskUsage(job, [promise](absl::StatusOr<v1::JobUsage> usage) {
    promise->set_value(usage.ok() ? *std::move(usage) : v1::JobUsage());
  });
  return answer.get();
}

}  // namespace

RunHistory::RunHistory(std::string log_dir, std::string job, Serving serving,
                       absl::Duration interval)
    : log_dir_(std::move(log_dir)), job_(std::move(job)), serving_(std::move(serving)) {
  thread_.emplace(absl::ToChronoNanoseconds(interval), [this] { Write(); });
}

RunHistory::~RunHistory() {
  thread_.reset();
  Write();
  files_.Drain(kDrainLimit);
}

void RunHistory::Write() {
  const auto core = serving_();
  if (!core.ok()) return;
  const absl::StatusOr<v1::JobStatus> status = (*core)->Status(job_);
  if (!status.ok() || status->run().empty()) return;
  files_.Post([directory = agent::RunDirectory(log_dir_, job_, status->run()),
               timeline = status->timeline(), ended = status->has_verdict(),
               usage = UsageOf(**core, job_)] {
    if (usage.nodes_size() > 0) WriteJson(directory + "/usage.json", usage);
    const std::string history = directory + "/history.json";
    if (ended) {
      unlink(history.c_str());
    } else {
      WriteJson(history, timeline);
    }
  });
}

}  // namespace cadre::launcher
