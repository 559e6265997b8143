// cadre dashboard: a web page about past runs, from the files in their log directories.
#include "launcher/commands/past_dashboard.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_source.h"
#include "launcher/commands/past_runs.h"
#include "proto/job.pb.h"
#include "rendezvous/web/dashboard/page.h"
#include "rendezvous/web/dashboard/status_json.h"
#include "rendezvous/web/dashboard/worker_logs.h"
#include "rendezvous/web/http/http_request.h"
#include "rendezvous/web/http/http_server.h"

namespace cadre::launcher {
namespace {

using Exchange = std::shared_ptr<web::HttpExchange>;

constexpr absl::Duration kTick = absl::Milliseconds(250);

std::string IdOf(const PastRun& run) {
  return absl::StrCat(run.job, "@", run.run.empty() ? absl::StrCat(run.number) : run.run);
}

// The run in the form of a server's job. If its files cannot be read, it has the reason in place of
// a verdict.
v1::JobStatus ShownStatus(const PastRun& run) {
  absl::StatusOr<v1::JobStatus> read = StatusOf(run);
  v1::JobStatus status;
  if (read.ok()) status = *std::move(read);
  status.set_name(IdOf(run));
  if (!status.has_verdict()) {
    status.set_waiting_for(read.ok() ? "nothing: it has no verdict; it still runs on another "
                                       "machine, or its launcher was killed"
                                     : absl::StrCat("nothing: ", read.status().message()));
  }
  if (status.timeline().generations_size() > 0) {
    const v1::GenerationTimeline& last =
        status.timeline().generations(status.timeline().generations_size() - 1);
    status.set_world_size(last.world_size());
    status.set_nodes_in(last.nodes());
    status.set_generation(last.generation());
    if (status.phase() == v1::SUCCEEDED) status.set_workers_succeeded(last.world_size());
  }
  return status;
}

// The status without the parts that the list does not show.
v1::JobStatus Short(v1::JobStatus status) {
  status.clear_timeline();
  if (status.has_verdict()) {
    v1::Verdict& verdict = *status.mutable_verdict();
    verdict.clear_root_cause();
    verdict.clear_collateral();
    verdict.clear_earlier();
  }
  return status;
}

}  // namespace

struct PastDashboard::Impl {
  Impl(std::vector<std::string> dirs, std::string token, std::unique_ptr<web::HttpServer> http)
      : log_dirs(std::move(dirs)), token(std::move(token)), http(std::move(http)) {
    for (const std::string& dir : log_dirs) {
      tails.emplace(dir, std::make_unique<web::LogTails>(dir));
    }
  }

  // --- on the HTTP server's thread ---

  // The runs by id, the newest first. A run that is in two directories, because it was copied, is
  // listed once.
  std::vector<PastRun> Runs() const {
    std::map<std::string, PastRun> found;
    for (const std::string& dir : log_dirs) {
      for (PastRun& run : RunsIn(dir, "")) found.emplace(IdOf(run), std::move(run));
    }
    std::vector<PastRun> runs;
    for (auto& [id, run] : found) runs.push_back(std::move(run));
    std::stable_sort(runs.begin(), runs.end(),
                     [](const PastRun& a, const PastRun& b) { return a.run > b.run; });
    if (runs.size() > kShownRuns) runs.resize(kShownRuns);
    return runs;
  }

  std::optional<PastRun> Find(absl::string_view id) const {
    const std::string job(id.substr(0, id.find('@')));
    if (!web::IsJobName(job)) return std::nullopt;
    for (const std::string& dir : log_dirs) {
      for (const PastRun& run : RunsIn(dir, job)) {
        if (IdOf(run) == id) return run;
      }
    }
    return std::nullopt;
  }

  std::string List() {
    std::vector<v1::JobStatus> jobs;
    for (const PastRun& run : Runs()) {
      // A run with a verdict is final, so it need not be read again.
      const auto known = ended.find(IdOf(run));
      if (known != ended.end()) {
        jobs.push_back(known->second);
        continue;
      }
      jobs.push_back(Short(ShownStatus(run)));
      if (jobs.back().has_verdict()) ended.emplace(IdOf(run), jobs.back());
    }
    return web::JobsJson(std::move(jobs));
  }

  void Answer(const web::HttpRequest& request, Exchange exchange) {
    if (const web::PageFile* file = web::FindPageFile(request.path)) {
      return exchange->Reply(200, file->type, file->text);
    }
    const std::optional<absl::string_view> said = web::TokenOf(request);
    if (!said.has_value() || !EqualConstantTime(*said, token)) {
      return web::ReplyError(
          *exchange, absl::UnauthenticatedError("the token is missing or wrong: open the whole "
                                                "address that 'cadre dashboard' printed"));
    }
    absl::string_view path = request.path;
    if (path == "/api/jobs") return exchange->Reply(200, web::kJsonType, List());
    if (path == "/api/events") return Events(request, std::move(exchange));
    if (absl::ConsumePrefix(&path, "/api/jobs/")) {
      const size_t slash = path.find('/');
      const std::optional<PastRun> run = Find(path.substr(0, slash));
      if (!run.has_value()) return web::ReplyError(*exchange, absl::NotFoundError("no such run"));
      return OfRun(*run, slash == path.npos ? "" : path.substr(slash + 1), request,
                   std::move(exchange));
    }
    exchange->Reply(404, web::kTextType, "there is no such page\n");
  }

  // Sends the current state. The page asks again whenever another run is chosen.
  void Events(const web::HttpRequest& request, Exchange exchange) {
    if (!exchange->Begin(web::kEventsType)) return;
    exchange->Write(web::ServerSentEvent("jobs", List()));
    const auto job = request.query.find("job");
    if (job != request.query.end()) {
      const std::optional<PastRun> run = Find(job->second);
      exchange->Write(
          web::ServerSentEvent("job", run.has_value() ? web::JobJson(ShownStatus(*run)) : "null"));
    }
    readers.push_back(std::move(exchange));
  }

  void OfRun(const PastRun& run, absl::string_view what, const web::HttpRequest& request,
             Exchange exchange) {
    if (what.empty()) return exchange->Reply(200, web::kJsonType, web::JobJson(ShownStatus(run)));
    if (what == "logs") {
      return exchange->Reply(200, web::kJsonType, web::LogListJson(run.log_dir, run.job, run.run));
    }
    if (what == "log") {
      const absl::StatusOr<std::string> path =
          web::LogPath(run.log_dir, run.job, run.run, request.query);
      if (!path.ok()) return web::ReplyError(*exchange, path.status());
      return tails.at(run.log_dir)->Add(std::move(exchange), *path);
    }
    if (what == "usage") {
      return exchange->Reply(200, web::kJsonType, web::UsageJson(UsageOf(run)));
    }
    exchange->Reply(404, web::kTextType, "there is no such page\n");
  }

  void Tick() {
    for (const auto& [dir, tail] : tails) tail->Tick();
    readers.erase(std::remove_if(readers.begin(), readers.end(),
                                 [](const Exchange& reader) { return reader->closed(); }),
                  readers.end());
  }

  const std::vector<std::string> log_dirs;
  const std::string token;
  std::map<std::string, std::unique_ptr<web::LogTails>> tails;  // by directory
  std::map<std::string, v1::JobStatus> ended;                   // by id
  std::vector<Exchange> readers;
  std::unique_ptr<web::HttpServer> http;  // last: its thread uses the others
};

absl::StatusOr<std::unique_ptr<PastDashboard>> PastDashboard::Start(
    std::vector<std::string> log_dirs, std::string token) {
  ASSIGN_OR_RETURN(std::unique_ptr<web::HttpServer> http, web::HttpServer::Listen("127.0.0.1", 0));
  auto impl = std::make_unique<Impl>(std::move(log_dirs), std::move(token), std::move(http));
  impl->http->Serve(
      [impl = impl.get()](const web::HttpRequest& request, Exchange exchange) {
        impl->Answer(request, std::move(exchange));
      },
      kTick, [impl = impl.get()] { impl->Tick(); });
  return std::unique_ptr<PastDashboard>(new PastDashboard(std::move(impl)));
}

PastDashboard::PastDashboard(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PastDashboard::~PastDashboard() = default;

int PastDashboard::port() const { return impl_->http->port(); }

namespace {

std::vector<Flag> Flags() {
  return {{"log-dir", "DIR", "Show the runs in DIR [./logs and the log directories used last]."}};
}

// These signals are blocked (launcher/cadre_main.cc), so sigwait can be used.
void AwaitSignal() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, signal);
  int signal = 0;
  while (sigwait(&ending, &signal) != 0) {
  }
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = MachineSettings(parsed, Flags(), "dashboard", {});
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const std::vector<std::string> directories = LogDirectories(*settings);
  if (directories.empty()) {
    return Fail(1,
                "no log directory is known: ./logs does not exist, and no run has used another "
                "one; name one with --log-dir DIR");
  }
  bool any = false;
  for (const std::string& directory : directories) any = any || !RunsIn(directory, "").empty();
  if (!any) {
    return Fail(
        1, absl::StrCat("no run's files are in ", directories[0],
                        directories.size() > 1 ? " or in the log directories used last" : "",
                        "; name the directory that a run had as --log-dir with --log-dir DIR"));
  }
  const std::string token = RandomToken();
  const auto dashboard = PastDashboard::Start(directories, token);
  if (!dashboard.ok()) return Fail(kExitUnavailable, dashboard.status().message());
  // Browsers do not send the part after '#', so the token appears in no log of a server or proxy.
  // The page's script sends it with each request.
  const int printed =
      Print(absl::StrCat("http://127.0.0.1:", (*dashboard)->port(), "/#token=", token, "\n"));
  if (printed != 0) return printed;
  Notice("serving past runs at this address until Ctrl-C");
  AwaitSignal();
  return 0;
}

}  // namespace

Command DashboardCommand() {
  Command command;
  command.name = "dashboard";
  command.summary = "Show past runs in the browser, and compare them.";
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
