#include "rendezvous/web/dashboard/event_streams.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/control.pb.h"
#include "rendezvous/web/dashboard/job_json.h"

namespace cadre::web {
namespace {

// Subjects that all readers get. No job has such names.
constexpr char kAllJobs[] = "";
constexpr char kNodes[] = "/nodes";

std::string ServerSentEvent(absl::string_view name, absl::string_view data) {
  // A newline would end the field.
  return absl::StrCat("event: ", name,
                      "\ndata: ", absl::StrReplaceAll(data, {{"\n", " "}, {"\r", " "}}), "\n\n");
}

std::string Trouble(const absl::Status& status) {
  return ServerSentEvent("trouble", status.message());
}

// Equal for equal messages: the order of a map's entries is not otherwise.
std::string Serialized(const google::protobuf::Message& message) {
  std::string text;
  google::protobuf::io::StringOutputStream stream(&text);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return text;
}

}  // namespace

EventStreams::EventStreams(Serving serving, HttpServer::Poster post)
    : serving_(std::move(serving)), post_(std::move(post)) {}

void EventStreams::Add(std::shared_ptr<HttpExchange> exchange, const std::string& job) {
  if (!exchange->Begin("text/event-stream; charset=utf-8")) return;
  readers_.push_back({std::move(exchange), job, {}, false});
  Tick();
}

void EventStreams::Tick() {
  readers_.erase(std::remove_if(readers_.begin(), readers_.end(),
                                [](const Reader& reader) { return reader.exchange->closed(); }),
                 readers_.end());
  for (Reader& reader : readers_) reader.behind = reader.exchange->waiting() >= kBehindBytes;
  std::set<std::string> read;
  if (!readers_.empty()) read = {kAllJobs, kNodes};
  for (const Reader& reader : readers_) read.insert(reader.job);
  for (auto it = subjects_.begin(); it != subjects_.end();) {
    it = read.count(it->first) == 0 ? subjects_.erase(it) : std::next(it);
  }
  for (const std::string& name : read) Ask(name, subjects_[name]);
  if (++ticks_ % kTicksBetweenComments != 0) return;
  for (Reader& reader : readers_) {
    if (!reader.behind) reader.exchange->Write(":\n\n");
  }
}

void EventStreams::Ask(const std::string& name, Subject& subject) {
  if (subject.asked) return;
  const auto core = serving_();
  if (!core.ok()) {
    return Take(name, core.status().ToString(), [&] { return Trouble(core.status()); });
  }
  subject.asked = true;
  // Answered on the core's thread, which has better things to do than to write JSON.
  if (name == kAllJobs) {
    (*core)->AskAllStatuses([this, post = post_](absl::StatusOr<std::vector<v1::JobStatus>> jobs) {
      post([this, jobs = std::move(jobs)] { TakeJobs(jobs); });
    });
  } else if (name == kNodes) {
    (*core)->AskNodes(
        [this, post = post_](absl::StatusOr<std::vector<v1::ClusterNodeStatus>> nodes) {
          post([this, nodes = std::move(nodes)] { TakeNodes(nodes); });
        });
  } else {
    (*core)->AskStatus(name, [this, post = post_, name](absl::StatusOr<v1::JobStatus> job) {
      post([this, name, job = std::move(job)] { TakeJob(name, job); });
    });
  }
}

void EventStreams::TakeJobs(absl::StatusOr<std::vector<v1::JobStatus>> jobs) {
  if (!jobs.ok()) {
    return Take(kAllJobs, jobs.status().ToString(), [&] { return Trouble(jobs.status()); });
  }
  v1::ListJobsReply all;
  for (const v1::JobStatus& job : *jobs) *all.add_jobs() = job;
  Take(kAllJobs, Serialized(all),
       [&] { return ServerSentEvent("jobs", JobsJson(*std::move(jobs))); });
}

void EventStreams::TakeNodes(absl::StatusOr<std::vector<v1::ClusterNodeStatus>> nodes) {
  if (!nodes.ok()) {
    return Take(kNodes, nodes.status().ToString(), [&] { return Trouble(nodes.status()); });
  }
  v1::ListNodesReply all;
  for (const v1::ClusterNodeStatus& node : *nodes) *all.add_nodes() = node;
  Take(kNodes, Serialized(all), [&] { return ServerSentEvent("nodes", NodesJson(*nodes)); });
}

void EventStreams::TakeJob(const std::string& name, absl::StatusOr<v1::JobStatus> job) {
  if (!job.ok()) {
    return Take(name, job.status().ToString(), [&] {
      return absl::IsNotFound(job.status()) ? ServerSentEvent("job", "null")
                                            : Trouble(job.status());
    });
  }
  Take(name, Serialized(*job), [&] { return ServerSentEvent("job", JobJson(*job)); });
}

void EventStreams::Take(const std::string& name, std::string serialized,
                        const std::function<std::string()>& event) {
  const auto found = subjects_.find(name);
  // Nobody reads it any more.
  if (found == subjects_.end()) return;
  Subject& subject = found->second;
  subject.asked = false;
  if (subject.version == 0 || subject.serialized != serialized) {
    subject.serialized = std::move(serialized);
    subject.event = event();
    ++subject.version;
  }
  for (Reader& reader : readers_) {
    if (name == kAllJobs || name == kNodes || reader.job == name) Tell(reader, name);
  }
  EndIfFinished();
}

void EventStreams::Tell(Reader& reader, const std::string& name) {
  const Subject& subject = subjects_[name];
  uint64_t& told = reader.told[name];
  if (told == subject.version || (reader.behind && !finishing_)) return;
  told = subject.version;
  reader.exchange->Write(subject.event);
}

void EventStreams::Finish() {
  finishing_ = true;
  Tick();
  EndIfFinished();
}

void EventStreams::EndIfFinished() {
  if (!finishing_) return;
  for (const auto& [name, subject] : subjects_) {
    if (subject.asked) return;
  }
  for (Reader& reader : readers_) reader.exchange->End();
  readers_.clear();
}

}  // namespace cadre::web
