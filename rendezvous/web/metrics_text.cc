#include "rendezvous/web/metrics_text.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rpc/job_progress.h"

namespace cadre::web {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.15g", value);
}

// Escapes a label's value: only these three characters need it.
std::string Quoted(absl::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text + '"';
}

class Page {
 public:
  void Family(absl::string_view name, absl::string_view type, absl::string_view help) {
    name_ = std::string(name);
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  void Sample(double value) { absl::StrAppend(&text_, name_, " ", Number(value), "\n"); }
  using Labels = std::vector<std::pair<absl::string_view, absl::string_view>>;
  void Sample(const Labels& labels, double value) {
    absl::StrAppend(&text_, name_, "{",
                    absl::StrJoin(labels, ",",
                                  [](std::string* out, const auto& label) {
                                    absl::StrAppend(out, label.first, "=", Quoted(label.second));
                                  }),
                    "} ", Number(value), "\n");
  }
  void Sample(absl::string_view label, absl::string_view of, double value) {
    Sample({{label, of}}, value);
  }
  void Gauge(absl::string_view name, absl::string_view help, double value) {
    Family(name, "gauge", help);
    Sample(value);
  }
  void Distribution(absl::string_view name, absl::string_view help, const Histogram& histogram) {
    Family(name, "histogram", help);
    uint64_t below = 0;
    for (size_t i = 0; i < histogram.bounds.size(); ++i) {
      below += histogram.in_bucket[i];
      absl::StrAppend(&text_, name, "_bucket{le=\"", absl::StrFormat("%g", histogram.bounds[i]),
                      "\"} ", below, "\n");
    }
    absl::StrAppend(&text_, name, "_bucket{le=\"+Inf\"} ", histogram.count, "\n", name, "_sum ",
                    Number(histogram.sum), "\n", name, "_count ", histogram.count, "\n");
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

template <typename Key>
uint64_t Of(const std::map<Key, uint64_t>& counts, int key) {
  const auto found = counts.find(static_cast<Key>(key));
  return found == counts.end() ? 0 : found->second;
}

// One series for each case of a message's oneof, also for those that have not occurred.
void ByCase(Page& page, absl::string_view label, const google::protobuf::OneofDescriptor& cases,
            const std::map<int, uint64_t>& counts) {
  for (int i = 0; i < cases.field_count(); ++i) {
    page.Sample(label, cases.field(i)->name(), Of(counts, cases.field(i)->number()));
  }
}

void ByCause(Page& page, const std::map<v1::FailureCause, uint64_t>& counts) {
  for (int cause = v1::CRASH; cause <= v1::FailureCause_MAX; ++cause) {
    page.Sample("cause", absl::AsciiStrToLower(v1::FailureCause_Name(cause)), Of(counts, cause));
  }
}

void Totals(Page& page, const host::ServerView& view) {
  std::map<v1::JobPhase, uint64_t> phases;
  double nodes = 0, running = 0;
  for (const v1::JobStatus& job : view.jobs) {
    ++phases[job.phase()];
    if (!host::IsLive(job)) continue;
    nodes += job.nodes_in();
    running += job.workers_running();
  }
  page.Family("cadre_jobs", "gauge", "Jobs that the server knows, by phase.");
  for (int phase = v1::QUEUED; phase <= v1::JobPhase_MAX; ++phase) {
    page.Sample("phase", rpc::PhaseName(static_cast<v1::JobPhase>(phase)), Of(phases, phase));
  }
  page.Gauge("cadre_nodes", "Nodes in live jobs, spares included.", nodes);
  page.Gauge("cadre_workers_running", "Running workers.", running);
  page.Gauge("cadre_streams", "Open streams of nodes.", view.streams);
  page.Gauge("cadre_store_calls_waiting", "Store calls outside of streams that wait for an answer.",
             view.calls);
  page.Gauge("cadre_queue_events", "Messages that the server has not handled yet.",
             view.queued_events);
  page.Gauge("cadre_queue_bytes",
             "Size of the messages that the server has not handled yet, in bytes.",
             view.queued_bytes);
  page.Gauge("cadre_saves", "1 while the state can be saved, else 0.", view.saves ? 1 : 0);
}

void Counted(Page& page, const Counters& counters) {
  page.Family("cadre_generations_total", "counter", "Generations that were formed.");
  page.Sample(counters.generations());
  page.Family("cadre_failures_total", "counter", "Generations ended by a failure, by root cause.");
  ByCause(page, counters.failures());
  page.Family("cadre_restarts_total", "counter",
              "Restarts that used a job's restart budget, by root cause.");
  ByCause(page, counters.restarts());
  page.Family("cadre_jobs_ended_total", "counter", "Jobs that ended, by outcome.");
  for (const v1::JobPhase outcome : {v1::SUCCEEDED, v1::FAILED, v1::CANCELLED_PHASE}) {
    page.Sample("outcome", rpc::PhaseName(outcome), Of(counters.jobs_ended(), outcome));
  }
  page.Family("cadre_node_messages_total", "counter",
              "Messages of nodes, by kind; renew is a heartbeat.");
  ByCase(page, "kind", *v1::NodeMessage::descriptor()->FindOneofByName("body"),
         counters.node_messages());
  page.Family("cadre_store_operations_total", "counter", "Store operations, by kind.");
  ByCase(page, "operation", *v1::StoreRequest::descriptor()->FindOneofByName("operation"),
         counters.store_operations());
  page.Distribution(
      "cadre_recovery_seconds",
      "Time from the stop order of a failure until all workers of the next generation ran.",
      counters.recoveries());
  page.Distribution("cadre_commit_seconds", "Time to save one batch of records.",
                    counters.commits());
}

void EachJob(Page& page, const std::vector<v1::JobStatus>& jobs) {
  std::vector<const v1::JobStatus*> live;
  for (const v1::JobStatus& job : jobs) {
    if (host::IsLive(job) && live.size() < kJobsWithSeries) live.push_back(&job);
  }
  const auto family = [&](absl::string_view name, absl::string_view help, const auto& value) {
    page.Family(name, "gauge", help);
    for (const v1::JobStatus* job : live) page.Sample("name", job->name(), value(*job));
  };
  family("cadre_job_generation", "Current or last generation.",
         [](const v1::JobStatus& job) { return static_cast<double>(job.generation()); });
  family("cadre_job_world_size", "Workers of the current generation.",
         [](const v1::JobStatus& job) { return job.world_size(); });
  family("cadre_job_workers_running", "Running workers.",
         [](const v1::JobStatus& job) { return job.workers_running(); });
  family("cadre_job_restarts_used", "Restarts that used the job's restart budget.",
         [](const v1::JobStatus& job) { return job.restarts(); });
  // A job without reports has no sample, because 0 would be a statement.
  live.erase(std::remove_if(live.begin(), live.end(),
                            [](const v1::JobStatus* job) { return !job->has_progress(); }),
             live.end());
  family("cadre_job_step", "Step of the slowest worker that reports.",
         [](const v1::JobStatus& job) { return static_cast<double>(job.progress().step()); });
  family("cadre_job_samples_per_second",
         "Samples per second of all workers that report; 0 while the job makes no step.",
         [](const v1::JobStatus& job) {
           return rpc::IsStalled(job.progress()) ? 0 : job.progress().samples_per_second();
         });
  page.Family(
      "cadre_job_figure", "gauge",
      "Values that the program reports under its own names, from the first rank that reports any.");
  for (const v1::JobStatus* job : live) {
    for (const v1::Figure& figure : job->progress().figures()) {
      page.Sample({{"name", job->name()}, {"figure", figure.name()}}, figure.value());
    }
  }
  const auto some = [&](absl::string_view name, absl::string_view help, const auto& value) {
    page.Family(name, "gauge", help);
    for (const v1::JobStatus* job : live) {
      if (value(job->progress()) > 0) page.Sample("name", job->name(), value(job->progress()));
    }
  };
  some("cadre_job_total_steps", "Total number of steps, if the program reports it.",
       [](const v1::JobProgress& progress) { return static_cast<double>(progress.total()); });
  some("cadre_job_seconds_left",
       "Estimated seconds until the last step, at the speed of this generation.",
       [](const v1::JobProgress& progress) {
         return static_cast<double>(progress.left_us()) / 1e6;
       });
  live.erase(std::remove_if(live.begin(), live.end(),
                            [](const v1::JobStatus* job) { return job->progress().loss() == 0; }),
             live.end());
  family("cadre_job_loss", "Loss: the mean over the workers that report it.",
         [](const v1::JobStatus& job) { return job.progress().loss(); });
}

}  // namespace

std::string MetricsText(const std::optional<host::ServerView>& view) {
  Page page;
  page.Gauge("cadre_leads", "1 if this server leads and serves jobs, 0 if it is a standby.",
             view.has_value() ? 1 : 0);
  if (!view.has_value()) return page.Take();
  Totals(page, *view);
  Counted(page, view->counters);
  EachJob(page, view->jobs);
  return page.Take();
}

}  // namespace cadre::web
