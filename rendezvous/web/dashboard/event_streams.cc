#include "rendezvous/web/dashboard/event_streams.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/control.pb.h"
#include "rendezvous/service/permissions.h"
#include "rendezvous/web/dashboard/status_json.h"
#include "rendezvous/web/http/http_server.h"

namespace cadre::web {
namespace {

// Subjects that all readers get. No job can have these names.
constexpr char kAllJobs[] = "";
constexpr char kNodes[] = "/nodes";

std::string Trouble(const absl::Status& status) {
  return ServerSentEvent("trouble", status.message());
}

// Equal for equal messages, which requires a deterministic order of map entries.
std::string Serialized(const google::protobuf::Message& message) {
  std::string text;
  google::protobuf::io::StringOutputStream stream(&text);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return text;
}
std::string Serialized(const std::vector<v1::JobStatus>& jobs) {
  v1::ListJobsReply all;
  for (const v1::JobStatus& job : jobs) *all.add_jobs() = job;
  return Serialized(all);
}
std::string Serialized(const std::vector<v1::ClusterNodeStatus>& nodes) {
  v1::ListNodesReply all;
  for (const v1::ClusterNodeStatus& node : nodes) *all.add_nodes() = node;
  return Serialized(all);
}

// Equal for bearers who see the same.
std::string ViewerOf(const Bearer& bearer) {
  return absl::StrCat(static_cast<int>(bearer.kind), " ", bearer.user);
}

template <typename View>
void Update(std::string serialized, const std::function<std::string()>& event, View& view) {
  if (view.version != 0 && view.serialized == serialized) return;
  view.serialized = std::move(serialized);
  view.event = event();
  ++view.version;
}

}  // namespace

EventStreams::EventStreams(Serving serving, HttpServer::Places places)
    : serving_(std::move(serving)), places_(std::move(places)) {}

void EventStreams::Add(std::shared_ptr<HttpExchange> exchange, const std::string& job,
                       const Bearer& bearer) {
  if (!exchange->Begin(kEventsType)) return;
  readers_.push_back({std::move(exchange), job, bearer, {}, false});
  Tick();
}

void EventStreams::Tick() {
  const absl::Time now = absl::Now();
  for (Reader& reader : readers_) {
    if (!CheckTokenExpiry(reader.bearer, now).ok()) reader.exchange->End();
  }
  readers_.erase(std::remove_if(readers_.begin(), readers_.end(),
                                [now](const Reader& reader) {
                                  return reader.exchange->closed() ||
                                         !CheckTokenExpiry(reader.bearer, now).ok();
                                }),
                 readers_.end());
  for (Reader& reader : readers_) reader.behind = reader.exchange->waiting() >= kBehindBytes;
  std::set<std::string> read;
  if (!readers_.empty()) read = {kAllJobs, kNodes};
  for (const Reader& reader : readers_) read.insert(reader.job);
  for (auto it = subjects_.begin(); it != subjects_.end();) {
    it = read.count(it->first) == 0 ? subjects_.erase(it) : std::next(it);
  }
  for (const std::string& name : read) RequestUpdate(name, subjects_[name]);
  if (++ticks_ % kTicksBetweenComments != 0) return;
  for (Reader& reader : readers_) {
    if (!reader.behind) reader.exchange->Write(":\n\n");
  }
}

void EventStreams::RequestUpdate(const std::string& name, Subject& subject) {
  if (subject.requested) return;
  const auto core = serving_();
  if (!core.ok()) {
    const absl::Status why = core.status();
    return UpdateViews(name, [&](const Bearer&, View& view) {
      Update(
          why.ToString(), [&] { return Trouble(why); }, view);
    });
  }
  const HttpServer::Poster post = places_();
  // The next tick tries again.
  if (!post) return;
  subject.requested = true;
  // The answer comes on the core's thread, which must not spend time on JSON.
  if (name == kAllJobs) {
    (*core)->AskAllStatuses([this, post](absl::StatusOr<std::vector<v1::JobStatus>> jobs) {
      post([this, jobs = std::move(jobs)] {
        TakeAnswer(kAllJobs, jobs, [](const std::vector<v1::JobStatus>& shown) {
          return ServerSentEvent("jobs", JobsJson(shown));
        });
      });
    });
  } else if (name == kNodes) {
    (*core)->AskNodes([this, post](absl::StatusOr<std::vector<v1::ClusterNodeStatus>> nodes) {
      post([this, nodes = std::move(nodes)] {
        TakeAnswer(kNodes, nodes, [](const std::vector<v1::ClusterNodeStatus>& shown) {
          return ServerSentEvent("nodes", NodesJson(shown));
        });
      });
    });
  } else {
    (*core)->AskStatus(name, [this, post, name](absl::StatusOr<v1::JobStatus> job) {
      post([this, name, job = std::move(job)] {
        TakeAnswer(name, job, [](const v1::JobStatus& shown) {
          return ServerSentEvent("job", JobJson(shown));
        });
      });
    });
  }
}

template <typename Answer, typename Event>
void EventStreams::TakeAnswer(const std::string& name, const absl::StatusOr<Answer>& answer,
                              const Event& event) {
  UpdateViews(name, [&](const Bearer& bearer, View& view) {
    if (answer.ok()) {
      Answer shown = *answer;
      service::ShowTo(bearer, &shown);
      return Update(
          Serialized(shown), [&] { return event(shown); }, view);
    }
    const absl::Status& why = answer.status();
    const bool no_job = name != kAllJobs && name != kNodes && absl::IsNotFound(why);
    Update(
        why.ToString(), [&] { return no_job ? ServerSentEvent("job", "null") : Trouble(why); },
        view);
  });
}

void EventStreams::UpdateViews(const std::string& name, const Show& show) {
  const auto found = subjects_.find(name);
  // No reader follows it any more.
  if (found == subjects_.end()) return;
  Subject& subject = found->second;
  subject.requested = false;
  std::map<std::string, View> views;
  for (Reader& reader : readers_) {
    if (name != kAllJobs && name != kNodes && reader.job != name) continue;
    const auto [view, is_new] = views.try_emplace(ViewerOf(reader.bearer));
    if (is_new) {
      view->second = std::move(subject.views[view->first]);
      show(reader.bearer, view->second);
    }
    SendIfChanged(reader, name, view->second);
  }
  // Drops views without readers.
  subject.views = std::move(views);
  EndIfFinished();
}

void EventStreams::SendIfChanged(Reader& reader, const std::string& name, const View& view) {
  uint64_t& sent = reader.sent[name];
  if (sent == view.version) return;
  // A reader that just got that much would be closed; the next tick sends the rest.
  const bool full = reader.exchange->waiting() > kHttpStreamBytesMax;
  if ((reader.behind || full) && !finishing_) return;
  sent = view.version;
  reader.exchange->Write(view.event);
}

void EventStreams::Finish() {
  finishing_ = true;
  Tick();
  EndIfFinished();
}

void EventStreams::EndIfFinished() {
  if (!finishing_) return;
  for (const auto& [name, subject] : subjects_) {
    if (subject.requested) return;
  }
  for (Reader& reader : readers_) reader.exchange->End();
  readers_.clear();
}

}  // namespace cadre::web
