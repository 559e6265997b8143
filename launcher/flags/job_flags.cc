#include "launcher/flags/job_flags.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "launcher/flags/run_flags.h"
#include "launcher/flags/take.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

absl::Status TakeSize(const Settings& settings, v1::JobSpec& job) {
  RETURN_IF_ERROR(Take(settings, "nnodes", ParseNodeRange,
                       [&](v1::NodeRange range) { *job.mutable_nodes() = range; }));
  RETURN_IF_ERROR(Take(settings, "nproc-per-node", ParseWorkersPerNode,
                       [&](v1::WorkersPerNode w) { *job.mutable_workers_per_node() = w; }));
  RETURN_IF_ERROR(Take(settings, "spares", ParseCount, [&](uint32_t n) { job.set_spares(n); }));
  RETURN_IF_ERROR(Take(settings, "checkpoint-signal", ParseSignal,
                       [&](int s) { job.mutable_elastic()->set_checkpoint_signal(s); }));
  return Take(settings, "scale-up", ParseScaleUp,
              [&](v1::ElasticPolicy::ScaleUp s) { job.mutable_elastic()->set_scale_up(s); });
}

// torchrun's words for --stop-grace, where that is not given: its flag, or its own variable.
std::optional<Setting> Shutdown(const Settings& settings) {
  constexpr char kVariable[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  if (settings.Get("stop-grace").has_value()) return std::nullopt;
  if (std::optional<Setting> flag = settings.Get("shutdown-timeout")) return flag;
  const std::string value = TextIn(settings.environment(), kVariable);
  if (value.empty()) return std::nullopt;
  return Setting{value, kVariable};
}

absl::StatusOr<absl::Duration> ParseSomeTime(absl::string_view text) {
  absl::StatusOr<absl::Duration> time = ParseDuration(text);
  if (!time.ok() || *time > absl::ZeroDuration()) return time;
  return absl::InvalidArgumentError(
      absl::StrCat("expected more than 0, got '", text, "': without the flag there is a default"));
}

absl::Status TakeTimes(const Settings& settings, v1::JobSpec& job) {
  const struct {
    const char* flag;
    google::protobuf::Duration* (*field)(v1::JobSpec&);
    bool some = false;  // 0 would be taken for the default
  } kTimes[] = {
      {"join-timeout",
       [](v1::JobSpec& j) { return j.mutable_rendezvous()->mutable_join_timeout(); }, true},
      {"settle", [](v1::JobSpec& j) { return j.mutable_rendezvous()->mutable_settle(); }},
      {"start-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_start(); }, true},
      {"progress-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_progress(); }},
      {"silence-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_silence(); }},
      {"stop-grace", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_stop_grace(); }},
      {"total-timeout", [](v1::JobSpec& j) { return j.mutable_timeouts()->mutable_total(); }},
      {"restart-window", [](v1::JobSpec& j) { return j.mutable_restart()->mutable_window(); },
       true},
  };
  if (const std::optional<Setting> shutdown = Shutdown(settings)) {
    const absl::StatusOr<absl::Duration> grace = Seconds(shutdown->value);
    if (!grace.ok()) return Named(*shutdown, grace.status());
    *job.mutable_timeouts()->mutable_stop_grace() = ToProto(*grace);
  }
  for (const auto& time : kTimes) {
    RETURN_IF_ERROR(Take(settings, time.flag, time.some ? ParseSomeTime : ParseDuration,
                         [&](absl::Duration value) { *time.field(job) = ToProto(value); }));
  }
  return absl::OkStatus();
}

absl::Status TakeRestarts(const Settings& settings, RunOptions& options) {
  v1::JobSpec& job = options.job;
  RETURN_IF_ERROR(Take(settings, "max-restarts", ParseCount,
                       [&](uint32_t n) { job.mutable_restart()->set_max(n); }));
  RETURN_IF_ERROR(Take(settings, "backoff", ParseDurationRange, [&](const auto& range) {
    *job.mutable_restart()->mutable_backoff_min() = ToProto(range.first);
    *job.mutable_restart()->mutable_backoff_max() = ToProto(range.second);
  }));
  RETURN_IF_ERROR(Take(settings, "restart-on", ListOf(ParseFailureCause), [&](const auto& causes) {
    job.mutable_restart()->clear_on();
    for (const v1::FailureCause cause : causes) job.mutable_restart()->add_on(cause);
  }));
  // A switch that is not given leaves the spec as it is.
  ASSIGN_OR_RETURN(const bool in_place, settings.Switch("in-place"));
  if (in_place) job.mutable_restart()->set_in_place(true);
  if (settings.Get("standby").has_value()) {
    ASSIGN_OR_RETURN(const bool standby, settings.Switch("standby"));
    job.mutable_restart()->set_standby(standby);
  }
  ASSIGN_OR_RETURN(const bool cold, settings.Switch("no-warm"));
  if (cold) job.mutable_restart()->set_warm(false);
  RETURN_IF_ERROR(Take(settings, "preload", ListOf(ParseModuleName), [&](const auto& modules) {
    job.mutable_restart()->clear_preload();
    for (const std::string& module : modules) job.mutable_restart()->add_preload(module);
  }));
  RETURN_IF_ERROR(Take(settings, "signals-to-handle", ListOf(ParseSignal), [&](const auto& all) {
    options.signals = {all.begin(), all.end()};
  }));
  return Take(settings, "never-exit-codes", ListOf(ParseExitCode), [&](const auto& codes) {
    job.mutable_restart()->clear_never_exit_codes();
    for (const uint32_t code : codes) job.mutable_restart()->add_never_exit_codes(code);
  });
}

absl::Status TakeWorkers(const Settings& settings, RunOptions& options) {
  v1::JobSpec& job = options.job;
  RETURN_IF_ERROR(Take(settings, "role", OneLineText, [&](std::string s) { job.set_role(s); }));
  RETURN_IF_ERROR(
      Take(settings, "working-dir", Text, [&](std::string s) { job.set_working_dir(s); }));
  for (const Setting& setting : settings.All("env")) {
    const size_t equals = setting.value.find('=');
    const std::string name = setting.value.substr(0, equals);
    const auto here = settings.environment().find(name);
    const bool from_here = equals == std::string::npos;
    if (name.empty() || (from_here && here == settings.environment().end())) {
      return Named(setting, absl::InvalidArgumentError(
                                absl::StrCat("expected NAME=VALUE, or the NAME of a variable that "
                                             "is set here, got '",
                                             setting.value, "'")));
    }
    const absl::Status allowed = CheckVariableName(name);
    if (!allowed.ok()) return Named(setting, allowed);
    (*job.mutable_env())[name] = from_here ? here->second : setting.value.substr(equals + 1);
  }
  // A switch that is not given leaves the spec as it is.
  ASSIGN_OR_RETURN(const bool no_agent_store, settings.Switch("no-agent-store"));
  if (no_agent_store) job.set_agent_store(false);
  ASSIGN_OR_RETURN(const bool encrypt, settings.Switch("encrypt"));
  if (encrypt) job.set_encrypt(true);
  RETURN_IF_ERROR(Take(settings, "env-style",
                       ListOf(OneOf<std::string>({{"slurm", "slurm"}, {"mpi", "mpi"}})),
                       [&](const auto& styles) {
                         for (const std::string& style : styles) {
                           absl::StrAppend(&options.workers.env_style,
                                           options.workers.env_style.empty() ? "" : ",", style);
                         }
                       }));
  RETURN_IF_ERROR(Take(
      settings, "numa-binding",
      OneOf<std::string>(
          {{"node", "numa"}, {"socket", "numa"}, {"exclusive", "numa"}, {"core-complex", "numa"}}),
      [&](std::string bind) { job.mutable_placement()->set_bind(bind); }));
  RETURN_IF_ERROR(Take(
      settings, "bind",
      OneOf<std::string>({{"none", "none"}, {"core", "core"}, {"numa", "numa"}, {"gpu", "gpu"}}),
      [&](std::string bind) { job.mutable_placement()->set_bind(bind); }));
  RETURN_IF_ERROR(Take(settings, "gpus-per-worker", OneOf<bool>({{"all", false}, {"own", true}}),
                       [&](bool own) { options.workers.gpus_per_worker_own = own; }));
  ASSIGN_OR_RETURN(options.workers.virtual_local_rank, settings.Switch("virtual-local-rank"));
  return absl::OkStatus();
}

// "3", or "0:1,1:3".
absl::StatusOr<StreamChoice> ParseStreamChoice(absl::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 0 to 3, or by local rank 0:1,1:3, got '", text, "'"));
  };
  StreamChoice choice;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const size_t colon = part.find(':');
    const absl::StatusOr<uint32_t> what =
        ParseCount(colon == part.npos ? part : part.substr(colon + 1));
    if (!what.ok() || *what > 3) return bad();
    if (colon == part.npos) {
      if (part.size() != text.size()) return bad();
      choice.all = *what;
      continue;
    }
    const absl::StatusOr<uint32_t> rank = ParseCount(part.substr(0, colon));
    if (!rank.ok()) return bad();
    choice.by_local_rank[*rank] = *what;
  }
  return choice;
}

absl::Status TakeOutput(const Settings& settings, RunOptions& options) {
  RETURN_IF_ERROR(Take(settings, "log-dir", Text,
                       [&](std::string dir) { options.job.mutable_logs()->set_dir(dir); }));
  RETURN_IF_ERROR(Take(settings, "redirects", ParseStreamChoice,
                       [&](StreamChoice choice) { options.redirects = std::move(choice); }));
  RETURN_IF_ERROR(Take(settings, "tee", ParseStreamChoice,
                       [&](StreamChoice choice) { options.tee = std::move(choice); }));
  RETURN_IF_ERROR(
      Take(settings, "logs-specs", OneOf<bool>({{"default", true}}), [](bool /*of torchrun*/) {}));
  agent::OutputOptions& output = options.output;
  RETURN_IF_ERROR(Take(settings, "local-ranks-filter", ListOf(ParseCount), [&](const auto& ranks) {
    output.terminal_local_ranks.insert(ranks.begin(), ranks.end());
  }));
  output.prefix_template =
      settings.GetOr("log-line-prefix-template",
                     TextIn(settings.environment(), "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"));
  output.stdout_filters = ParseTexts(settings.GetOr("duplicate-stdout-filters", ""));
  output.stderr_filters = ParseTexts(settings.GetOr("duplicate-stderr-filters", ""));
  RETURN_IF_ERROR(Take(settings, "output", OneOf<bool>({{"plain", false}, {"json", true}}),
                       [&](bool json) { options.json = json; }));
  ASSIGN_OR_RETURN(options.no_progress, settings.Switch("no-progress"));
  ASSIGN_OR_RETURN(options.timeline, settings.Switch("timeline"));
  for (const auto& [flag, why] : FlagsWithoutMeaning()) {
    const std::optional<Setting> setting = settings.Get(flag);
    if (!setting.has_value()) continue;
    options.notices.push_back(absl::StrCat(setting->origin, " has no effect here: ", why));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> ParseTexts(absl::string_view text) {
  std::vector<std::string> texts;
  bool begins = true;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool doubled = text.substr(i, 2) == ",,";
    if (text[i] == ',' && !doubled) {
      begins = true;
      continue;
    }
    if (begins) texts.emplace_back();
    begins = false;
    texts.back() += text[i];
    i += doubled;
  }
  return texts;
}

absl::Status TakeJobFlags(const Settings& settings, RunOptions& options) {
  RETURN_IF_ERROR(TakeSize(settings, options.job));
  RETURN_IF_ERROR(TakeTimes(settings, options.job));
  RETURN_IF_ERROR(TakeRestarts(settings, options));
  RETURN_IF_ERROR(TakeWorkers(settings, options));
  return TakeOutput(settings, options);
}

}  // namespace cadre::launcher
