#include "bench/floods/observation.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr int kLookMs = 10;
constexpr int kCallPauseMs = 50;
constexpr int kLaunchPauseMs = 100;
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kLaunchTimeout = absl::Seconds(20);
// Names are not used twice: quiet ones come before those during the flood.
std::atomic<int> next_launch{0};

double Mebibytes(pid_t pid) {
  const std::vector<std::string> words =
      absl::StrSplit(ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/statm")), ' ');
  int64_t pages = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &pages)) return 0;
  return static_cast<double>(pages * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double ProcessorSeconds(pid_t pid) {
  const std::string stat = ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/stat"));
  // The name before may have blanks.
  const size_t end = stat.rfind(')');
  if (end == stat.npos) return 0;
  const std::vector<std::string> words = absl::StrSplit(stat.substr(end), ' ');
  int64_t user = 0, system = 0;
  if (words.size() < 14 || !absl::SimpleAtoi(words[12], &user) ||
      !absl::SimpleAtoi(words[13], &system)) {
    return 0;
  }
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double MillisSince(MonoTime start) { return absl::ToDoubleMilliseconds(MonoNow() - start); }

// Calls again and again, and does not wait longer than `end` for the last one but for the call's
// own timeout.
void CallUntil(MonoTime end, const std::atomic<bool>& stop, int pause_ms, absl::Duration timeout,
               const std::function<absl::Status(absl::Duration)>& call, Served* served) {
  while (!stop && MonoNow() < end) {
    const MonoTime start = MonoNow();
    const absl::Status done = call(timeout);
    if (absl::IsUnimplemented(done)) {
      served->none = true;
      return;
    }
    if (done.ok()) {
      served->ms.push_back(MillisSince(start));
    } else {
      ++served->failed;
      served->error = std::string(done.message());
      served->failed_ms = std::max(served->failed_ms, MillisSince(start));
    }
    poll(nullptr, 0, pause_ms);
  }
}

}  // namespace

std::optional<double> Served::Median() const {
  if (ms.empty()) return std::nullopt;
  std::vector<double> sorted = ms;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

std::optional<double> Served::Worst() const {
  if (ms.empty()) return std::nullopt;
  return *std::max_element(ms.begin(), ms.end());
}

Figures Observe(Target& target, const ObservationLimits& limits,
                const std::function<void()>& on_limit) {
  Figures figures;
  const pid_t pid = target.pid();
  const double processor_before = ProcessorSeconds(pid);
  figures.first_mib = figures.peak_mib = Mebibytes(pid);
  const MonoTime start = MonoNow();
  const MonoTime end = start + limits.duration;
  std::atomic<bool> stop{false};
  std::thread launches([&] {
    CallUntil(
        end, stop, kLaunchPauseMs, kLaunchTimeout,
        [&](absl::Duration timeout) { return target.Launch(next_launch++, timeout); },
        &figures.launches);
  });
  std::thread kept([&] {
    CallUntil(
        end, stop, kCallPauseMs, kCallTimeout,
        [&](absl::Duration timeout) { return target.KeptCall(timeout); }, &figures.kept_calls);
  });
  std::thread fresh([&] {
    CallUntil(
        end, stop, kCallPauseMs, kCallTimeout,
        [&](absl::Duration timeout) { return target.NewCall(timeout); }, &figures.new_calls);
  });
  while (MonoNow() < end) {
    figures.peak_mib = std::max(figures.peak_mib, Mebibytes(pid));
    if (figures.peak_mib > limits.memory_mib) {
      on_limit();
      figures.reached_limit = stop = true;
      break;
    }
    poll(nullptr, 0, kLookMs);
  }
  figures.seconds = absl::ToDoubleSeconds(MonoNow() - start);
  figures.processor_seconds = ProcessorSeconds(pid) - processor_before;
  for (std::thread* thread : {&launches, &kept, &fresh}) thread->join();
  return figures;
}

namespace {

using nlohmann::json;

json ToJson(const Served& served) {
  json figures = {{"answered", served.ms.size()}, {"failed", served.failed}};
  if (const auto median = served.Median()) figures["median_ms"] = *median;
  if (const auto worst = served.Worst()) figures["worst_ms"] = *worst;
  if (served.failed > 0) {
    figures["error"] = served.error;
    figures["longest_failed_ms"] = served.failed_ms;
  }
  return served.none ? json() : figures;
}

// "12.3", with "/45.6" where the worst is asked for, and "3 failed" behind it.
std::string Text(const json& served, bool worst) {
  if (served.is_null()) return "-";
  std::string text = "never";
  if (served.contains("median_ms")) {
    text = absl::StrFormat("%.1f", served["median_ms"].get<double>());
    if (worst) absl::StrAppendFormat(&text, "/%.0f", served["worst_ms"].get<double>());
  }
  const int failed = served.value("failed", 0);
  if (failed > 0) absl::StrAppend(&text, " !", failed);
  return text;
}

std::string Title(const json& entry) {
  std::string title = entry["flood"];
  for (const char* field : {"token", "transport", "from"}) {
    const std::string value = entry.value(field, "");
    if (!value.empty()) absl::StrAppend(&title, ", ", value);
  }
  return title;
}

}  // namespace

json ToJson(const Figures& figures) {
  return {{"launch", ToJson(figures.launches)},
          {"kept_call", ToJson(figures.kept_calls)},
          {"new_call", ToJson(figures.new_calls)},
          {"seconds", figures.seconds},
          {"first_mib", figures.first_mib},
          {"peak_mib", figures.peak_mib},
          {"processor_seconds", figures.processor_seconds},
          {"reached_memory_limit", figures.reached_limit}};
}

json ToJson(const FloodCounts& counts) {
  return {{"connected", counts.connected},
          {"not_connected", counts.not_connected},
          {"closed_by_server", counts.closed_by_server},
          {"handshakes", counts.handshakes},
          {"failed_handshakes", counts.failed_handshakes},
          {"frames", counts.frames},
          {"bytes_sent", counts.bytes_sent},
          {"bytes_received", counts.bytes_received},
          {"streams", counts.streams},
          {"streams_reset_by_server", counts.streams_reset_by_server},
          {"answered_ok", counts.answered_ok},
          {"answered_otherwise", counts.answered_otherwise},
          {"go_aways", counts.go_aways}};
}

void PrintHead() {
  absl::PrintF("%-76s %-6s %15s %18s %18s %9s %9s %5s %s\n", "flood", "server", "launch ms",
               "kept call ms", "new call ms", "MiB", "CPU s/s", "lost", "sent");
  absl::PrintF("%-76s %-6s %15s %18s %18s\n", "", "", "quiet > flood", "median/worst",
               "median/worst");
}

void PrintLine(const json& entry) {
  absl::PrintF("%-76s %-6s", Title(entry), entry["target"].get<std::string>());
  if (entry.contains("error")) {
    absl::PrintF(" %s\n", entry["error"].get<std::string>());
    return;
  }
  const json& quiet = entry["quiet"];
  const json& flooded = entry["flooded"];
  absl::PrintF(" %15s",
               absl::StrCat(Text(quiet["launch"], false), " > ", Text(flooded["launch"], false)));
  absl::PrintF(" %18s", Text(flooded["kept_call"], true));
  absl::PrintF(" %18s", Text(flooded["new_call"], true));
  absl::PrintF(" %8.0f%s", flooded["peak_mib"].get<double>() - flooded["first_mib"].get<double>(),
               flooded["reached_memory_limit"].get<bool>() ? "^" : " ");
  absl::PrintF(" %9.2f", flooded["processor_seconds"].get<double>() /
                             std::max(flooded["seconds"].get<double>(), 0.001));
  absl::PrintF(" %5d", entry["lost"].size());
  if (entry.contains("sent")) {
    const json& sent = entry["sent"];
    absl::PrintF(
        " %d connections, %d closed by the server, %d MiB, %d frames, %d streams, %d reset"
        " by the server, %d + %d answers",
        sent["connected"].get<uint64_t>(), sent["closed_by_server"].get<uint64_t>(),
        sent["bytes_sent"].get<uint64_t>() >> 20, sent["frames"].get<uint64_t>(),
        sent["streams"].get<uint64_t>(), sent["streams_reset_by_server"].get<uint64_t>(),
        sent["answered_ok"].get<uint64_t>(), sent["answered_otherwise"].get<uint64_t>());
  }
  absl::PrintF("\n");
  for (const json& what : entry["lost"]) absl::PrintF("    lost: %s\n", what.get<std::string>());
}

void PrintTable(const json& entries) {
  absl::PrintF("\nSide by side:\n");
  PrintHead();
  std::vector<json> sorted(entries.begin(), entries.end());
  const auto key = [](const json& entry) {
    return std::make_tuple(entry["flood"].get<std::string>(), entry.value("from", ""),
                           entry.value("transport", ""), entry.value("token", ""));
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const json& a, const json& b) { return key(a) < key(b); });
  for (const json& entry : sorted) PrintLine(entry);
  absl::PrintF(
      "launch: of a job that does nothing, from its start to its end; etcd: a write and a "
      "read of it.\n!N: N were not served. never: none was. ^: the memory's limit was "
      "reached, and the flood ended.\nMiB: the peak's, less those before the flood.\n");
}

}  // namespace cadre
