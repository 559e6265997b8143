#include "rendezvous/web/dashboard/dashboard.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/bearer_token.h"
#include "base/status_macros.h"
#include "rendezvous/service/caller_limits.h"
#include "rendezvous/service/listening.h"
#include "rendezvous/service/permissions.h"
#include "rendezvous/web/dashboard/page.h"
#include "rendezvous/web/dashboard/status_json.h"
#include "rendezvous/web/dashboard/worker_logs.h"
#include "rendezvous/web/http/http_server.h"
#include "rendezvous/web/metrics_text.h"

namespace cadre::web {
namespace {

using service::ShowTo;

void ShowTo(const Bearer& bearer, host::ServerView* view) { ShowTo(bearer, &view->jobs); }

host::OwnerCheck OwnerCheckOf(const Bearer& bearer) {
  return [bearer](absl::string_view owner) { return service::MayUseJob(bearer, owner); };
}

}  // namespace

struct Dashboard::Impl {
  using Exchange = std::shared_ptr<HttpExchange>;

  Impl(DashboardOptions options, Serving serving, std::unique_ptr<HttpServer> http)
      : options(std::move(options)),
        serving(std::move(serving)),
        events(this->serving, [http = http.get()] { return http->TakePlace(); }),
        tails(this->options.log_dir),
        agent_logs(this->serving, [http = http.get()] { return http->TakePlace(); }),
        http(std::move(http)) {}

  // --- on the HTTP server's thread ---

  // The bearer of the request's token, as for gRPC calls.
  absl::StatusOr<Bearer> ReaderOf(const HttpRequest& request) const {
    if (options.token.empty()) {
      if (HostIsLoopback(request, options.host)) return Bearer();
      return absl::PermissionDeniedError(
          "this server has no token, so it answers only under a name of loopback: use localhost or "
          "127.0.0.1");
    }
    const std::optional<absl::string_view> token = TokenOf(request);
    std::optional<Bearer> bearer;
    if (token.has_value()) {
      bearer = VerifiedBearer(options.token_now ? options.token_now() : options.token, *token);
    }
    if (!bearer.has_value()) {
      return absl::UnauthenticatedError(absl::StrCat(
          token.has_value() ? "this token is not one of this server's" : "",
          token.has_value() ? "; " : "", "a token is required, the server's own or one made by ",
          "'cadre token new FILE --read-only': send it as 'Authorization: Bearer TOKEN'"));
    }
    RETURN_IF_ERROR(CheckTokenExpiry(*bearer, absl::Now()));
    const auto core = serving();
    if (core.ok()) RETURN_IF_ERROR(CheckTokenServer(*bearer, (*core)->server_id()));
    RETURN_IF_ERROR(service::MayView(*bearer));
    return *std::move(bearer);
  }

  void Answer(const HttpRequest& request, Exchange exchange) {
    if (const PageFile* file = FindPageFile(request.path)) {
      return exchange->Reply(200, file->type, file->text);
    }
    if (request.path == "/healthz") return Health(std::move(exchange));
    const absl::StatusOr<Bearer> bearer = ReaderOf(request);
    if (!bearer.ok()) return ReplyError(*exchange, bearer.status());
    if (!MayReadMore(*bearer, exchange)) return;
    absl::string_view path = request.path;
    if (path == "/metrics") return Metrics(*bearer, std::move(exchange));
    if (path == "/api/events") {
      const auto job = request.query.find("job");
      if (job == request.query.end()) return events.Add(std::move(exchange), "", *bearer);
      if (IsJobName(job->second)) return events.Add(std::move(exchange), job->second, *bearer);
      return ReplyError(*exchange, absl::NotFoundError("no such job"));
    }
    if (path == "/api/jobs") return Jobs(*bearer, std::move(exchange));
    if (path == "/api/nodes") return Nodes(*bearer, std::move(exchange));
    if (absl::ConsumePrefix(&path, "/api/jobs/")) {
      return OfJob(std::string(path), *bearer, request, std::move(exchange));
    }
    exchange->Reply(404, kTextType, "there is no such page\n");
  }

  // Whether the caller may have one more reader. A user who opens as many as allowed takes only the
  // user's own places. False: the exchange was answered with an error.
  bool MayReadMore(const Bearer& bearer, const Exchange& exchange) {
    if (bearer.kind == Bearer::Kind::kAdministrator) return true;
    const std::string caller = service::CallerText(bearer);
    std::vector<std::weak_ptr<HttpExchange>>& own = readers[caller];
    own.erase(std::remove_if(own.begin(), own.end(),
                             [](const std::weak_ptr<HttpExchange>& one) {
                               const Exchange reader = one.lock();
                               return reader == nullptr || reader->closed();
                             }),
              own.end());
    if (own.size() >= kReadersOfUserMax) {
      exchange->Reply(503, kTextType,
                      absl::StrCat(caller, ": ", own.size(),
                                   " requests to the dashboard are open, which is the limit "
                                   "(dashboard readers of a user); close some of its pages, or try "
                                   "again later\n"));
      return false;
    }
    own.push_back(exchange);
    return true;
  }

  // Reserves a place for the core's answer to this reader. Null: there is none, and the reader got
  // an error.
  HttpServer::Poster PlaceFor(HttpExchange& exchange) const {
    HttpServer::Poster place = http->TakePlace();
    if (!place) {
      ReplyError(exchange, absl::ResourceExhaustedError(
                               "the server has too many unanswered requests; try again later"));
    }
    return place;
  }

  // Asks the core, and replies on this thread with what the reader may see. `ask` starts the
  // request, and `reply` turns its answer into a reply.
  template <typename Answered, typename Ask, typename Reply>
  void AskCore(const Bearer& bearer, Exchange exchange, const Ask& ask, Reply reply) {
    const auto core = serving();
    if (!core.ok()) return ReplyError(*exchange, core.status());
    const HttpServer::Poster post = PlaceFor(*exchange);
    if (!post) return;
    ask(**core, [post, bearer, exchange, reply](absl::StatusOr<Answered> answered) {
      post([bearer, exchange, reply, answered = std::move(answered)]() mutable {
        if (!answered.ok()) return ReplyError(*exchange, answered.status());
        ShowTo(bearer, &*answered);
        reply(*exchange, *answered);
      });
    });
  }

  // Needs no token, so it makes the cheapest request, and one for all readers that wait: there may
  // be any number of them, one after another.
  void Health(Exchange exchange) {
    const auto core = serving();
    if (!core.ok()) return exchange->Reply(200, kTextType, "ok, in reserve\n");
    if (!health_asked) {
      const HttpServer::Poster post = PlaceFor(*exchange);
      if (!post) return;
      health_asked = true;
      (*core)->AskHealth([this, post](const absl::Status& status) {
        post([this, status] { TakeHealth(status); });
      });
    }
    health_readers.erase(std::remove_if(health_readers.begin(), health_readers.end(),
                                        [](const Exchange& reader) { return reader->closed(); }),
                         health_readers.end());
    health_readers.push_back(std::move(exchange));
  }
  void TakeHealth(const absl::Status& status) {
    health_asked = false;
    for (const Exchange& reader : std::exchange(health_readers, {})) {
      if (status.ok()) {
        reader->Reply(200, kTextType, "ok\n");
      } else {
        ReplyError(*reader, status);
      }
    }
  }

  void Metrics(const Bearer& bearer, Exchange exchange) {
    if (!serving().ok()) {
      return exchange->Reply(200, kMetricsContentType, MetricsText(std::nullopt));
    }
    AskCore<host::ServerView>(
        bearer, std::move(exchange),
        [](host::CoreThread& core, auto done) { core.AskView(std::move(done)); },
        [](HttpExchange& to, const host::ServerView& view) {
          to.Reply(200, kMetricsContentType, MetricsText(view));
        });
  }

  void Jobs(const Bearer& bearer, Exchange exchange) {
    AskCore<std::vector<v1::JobStatus>>(
        bearer, std::move(exchange),
        [](host::CoreThread& core, auto done) { core.AskAllStatuses(std::move(done)); },
        [](HttpExchange& to, const std::vector<v1::JobStatus>& jobs) {
          to.Reply(200, kJsonType, JobsJson(jobs));
        });
  }

  void Nodes(const Bearer& bearer, Exchange exchange) {
    AskCore<std::vector<v1::ClusterNodeStatus>>(
        bearer, std::move(exchange),
        [](host::CoreThread& core, auto done) { core.AskNodes(std::move(done)); },
        [](HttpExchange& to, const std::vector<v1::ClusterNodeStatus>& nodes) {
          to.Reply(200, kJsonType, NodesJson(nodes));
        });
  }

  void OfJob(std::string job, const Bearer& bearer, const HttpRequest& request, Exchange exchange) {
    const bool list = absl::EndsWith(job, "/logs");
    const bool log = absl::EndsWith(job, "/log");
    const bool stacks = absl::EndsWith(job, "/stacks");
    const bool usage = absl::EndsWith(job, "/usage");
    job = job.substr(0, job.find('/'));
    if (!IsJobName(job)) return ReplyError(*exchange, absl::NotFoundError("no such job"));
    if (list || log) return Logs(job, list, bearer, request, std::move(exchange));
    if (stacks) return Stacks(job, bearer, request, std::move(exchange));
    if (usage) return Usage(job, bearer, std::move(exchange));
    if (request.path != absl::StrCat("/api/jobs/", job)) {
      return exchange->Reply(404, kTextType, "there is no such page\n");
    }
    AskCore<v1::JobStatus>(
        bearer, std::move(exchange),
        [&](host::CoreThread& core, auto done) { core.AskStatus(job, std::move(done), OwnerCheckOf(bearer)); },
        [](HttpExchange& to, const v1::JobStatus& status) {
          to.Reply(200, kJsonType, JobJson(status));
        });
  }

  void Usage(const std::string& job, const Bearer& bearer, Exchange exchange) {
    AskCore<v1::JobUsage>(
        bearer, std::move(exchange),
        [&](host::CoreThread& core, auto done) { core.AskUsage(job, std::move(done), OwnerCheckOf(bearer)); },
        [](HttpExchange& to, const v1::JobUsage& usage) {
          to.Reply(200, kJsonType, UsageJson(usage));
        });
  }

  void Stacks(const std::string& job, const Bearer& bearer, const HttpRequest& request,
              Exchange exchange) {
    // The only request with an effect: interpreters get a signal.
    if (IsFromAnotherSite(request)) {
      return ReplyError(
          *exchange, absl::PermissionDeniedError("a page of another site may not request stacks"));
    }
    v1::GetStacksRequest asked;
    asked.set_job(job);
    if (const auto rank = request.query.find("rank"); rank != request.query.end()) {
      uint32_t number = 0;
      if (!absl::SimpleAtoi(rank->second, &number)) {
        return ReplyError(*exchange,
                          absl::InvalidArgumentError("rank= is expected to be a number"));
      }
      asked.mutable_question()->set_one_rank(true);
      asked.mutable_question()->set_rank(number);
    }
    AskCore<v1::GetStacksReply>(
        bearer, std::move(exchange),
        [&](host::CoreThread& core, auto done) {
          core.AskStacks(asked, std::move(done), OwnerCheckOf(bearer));
        },
        [](HttpExchange& to, const v1::GetStacksReply& reply) {
          to.Reply(200, kJsonType, StacksJson(reply));
        });
  }

  // Logs of a submitted job come from the nodes of its workers.
  void Logs(const std::string& job, bool list, const Bearer& bearer, const HttpRequest& request,
            Exchange exchange) {
    const auto core = serving();
    if (!core.ok()) {
      return LogsHere(job, v1::JobStatus(), list, bearer, request.query, std::move(exchange));
    }
    const HttpServer::Poster post = PlaceFor(*exchange);
    if (!post) return;
    (*core)->AskStatus(job, [this, post, job, list, bearer, query = request.query,
                             exchange](absl::StatusOr<v1::JobStatus> status) {
      post([this, job, list, bearer, query, exchange, status = std::move(status)] {
        const bool submitted = status.ok() && !status->user().empty();
        if (!submitted) {
          return LogsHere(job, status.ok() ? *status : v1::JobStatus(), list, bearer, query,
                          exchange);
        }
        const absl::Status may = service::MayUseJob(bearer, service::OwnerOf(*status));
        if (!may.ok()) return ReplyError(*exchange, may);
        if (list) return exchange->Reply(200, kJsonType, LogListJson(*status));
        absl::StatusOr<v1::ReadLogRequest> asked = ParseLogQuery(job, query);
        if (!asked.ok()) return ReplyError(*exchange, asked.status());
        asked->set_run(status->run());
        agent_logs.Add(exchange, *std::move(asked), OwnerCheckOf(bearer));
      });
    });
  }

  // `status` is empty if the server knows no such job.
  void LogsHere(const std::string& job, const v1::JobStatus& status, bool list,
                const Bearer& bearer, const std::map<std::string, std::string>& query,
                Exchange exchange) {
    const absl::Status may = service::MayUseJob(bearer, service::OwnerOf(status));
    if (!may.ok()) return ReplyError(*exchange, may);
    const std::string& run = status.run();
    if (list) {
      const std::string none = "{\"generations\":[]}";
      return exchange->Reply(
          200, kJsonType, options.log_dir.empty() ? none : LogListJson(options.log_dir, job, run));
    }
    if (options.log_dir.empty()) {
      return ReplyError(*exchange,
                        absl::NotFoundError("this server has no log directory: the workers' output "
                                            "lies on their nodes"));
    }
    const absl::StatusOr<std::string> path = LogPath(options.log_dir, job, run, query);
    if (!path.ok()) return ReplyError(*exchange, path.status());
    tails.Add(std::move(exchange), *path);
  }

  const DashboardOptions options;
  const Serving serving;
  EventStreams events;
  LogTails tails;
  AgentLogs agent_logs;
  // Unfinished requests, by caller.
  std::map<std::string, std::vector<std::weak_ptr<HttpExchange>>> readers;
  bool health_asked = false;
  // The readers that wait for the answer.
  std::vector<Exchange> health_readers;
  // The last member, so that its thread ends before the others are destroyed.
  std::unique_ptr<HttpServer> http;
};

absl::StatusOr<std::unique_ptr<Dashboard>> Dashboard::Start(const DashboardOptions& options,
                                                            Serving serving) {
  if (options.token.empty()) {
    ASSIGN_OR_RETURN(const bool loopback, service::IsLoopback(options.host));
    if (!loopback) {
      return absl::InvalidArgumentError(
          absl::StrCat("a dashboard on ", options.host,
                       " can be reached from other machines and needs a token: give --token-file"));
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> http,
                   HttpServer::Listen(options.host, options.port));
  auto impl = std::make_unique<Impl>(options, std::move(serving), std::move(http));
  impl->http->Serve(
      [impl = impl.get()](const HttpRequest& request, std::shared_ptr<HttpExchange> exchange) {
        impl->Answer(request, std::move(exchange));
      },
      kDashboardInterval,
      [impl = impl.get()] {
        impl->events.Tick();
        impl->tails.Tick();
        impl->agent_logs.Tick();
      });
  return std::unique_ptr<Dashboard>(new Dashboard(std::move(impl)));
}

Dashboard::Dashboard(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Dashboard::~Dashboard() = default;

int Dashboard::port() const { return impl_->http->port(); }

void Dashboard::Finish(absl::Duration limit) {
  impl_->http->poster()([impl = impl_.get()] {
    impl->events.Finish();
    impl->tails.Finish();
    impl->agent_logs.Finish();
  });
  impl_->http->Drain(limit);
}

}  // namespace cadre::web
