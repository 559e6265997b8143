#include "agent/workers/node_usage.h"

#include <atomic>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "agent/workers/node_hardware.h"

namespace cadre::agent {
namespace {

// Only the first line is read, because the rest of /proc/stat has a number for each interrupt.
std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Parses a line like "MemTotal:  16374044 kB".
std::optional<uint64_t> BytesOf(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  uint64_t kilobytes = 0;
  if (words.size() != 3 || words[2] != "kB" || !absl::SimpleAtoi(words[1], &kilobytes)) {
    return std::nullopt;
  }
  return kilobytes * 1024;
}

}  // namespace

std::optional<CpuTimes> ParseCpuTimes(absl::string_view stat) {
  const absl::string_view line = stat.substr(0, stat.find('\n'));
  // The words are: cpu user nice system idle iowait irq softirq steal. The time of guests is
  // contained in user and nice.
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (words.size() < 5 || words[0] != "cpu") return std::nullopt;
  CpuTimes times;
  for (size_t i = 1; i < words.size() && i <= 8; ++i) {
    uint64_t ticks = 0;
    if (!absl::SimpleAtoi(words[i], &ticks)) return std::nullopt;
    times.all += ticks;
    const bool idle = i == 4 || i == 5;
    if (!idle) times.busy += ticks;
  }
  return times;
}

bool ParseMemory(absl::string_view meminfo, v1::NodeUsage* usage) {
  std::optional<uint64_t> total, available;
  for (const absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    if (absl::StartsWith(line, "MemTotal:")) total = BytesOf(line);
    if (absl::StartsWith(line, "MemAvailable:")) available = BytesOf(line);
  }
  if (!total || !available || *available > *total) return false;
  usage->set_memory_total(*total);
  usage->set_memory_used(*total - *available);
  return true;
}

struct UsageWatch::State {
  explicit State(std::string directory) : proc(std::move(directory)) {}

  void Measure() {
    const std::optional<CpuTimes> now = ParseCpuTimes(FirstLineOf(proc + "/stat"));
    measured.reset();
    v1::NodeUsage usage;
    if (now && before && now->all > before->all && now->busy >= before->busy &&
        ParseMemory(TextOf(proc + "/meminfo"), &usage)) {
      usage.set_cpu(static_cast<float>(now->busy - before->busy) /
                    static_cast<float>(now->all - before->all));
      if (const std::optional<GpuUse> use = gpus.Read()) {
        usage.set_gpus(use->gpus);
        usage.set_gpu(use->busy);
        usage.set_gpu_memory_used(use->memory_used);
        usage.set_gpu_memory_total(use->memory_total);
      }
      measured = usage;
    }
    before = now;
    done = true;
  }

  const std::string proc;
  std::optional<CpuTimes> before;
  GpuMeter gpus;
  std::optional<v1::NodeUsage> measured;
  std::atomic<bool> done{true};
};

UsageWatch::UsageWatch(std::string proc, absl::Duration interval)
    : interval_(interval), state_(std::make_shared<State>(std::move(proc))) {}
UsageWatch::~UsageWatch() = default;

std::optional<v1::NodeUsage> UsageWatch::Poll(MonoTime now) {
  if (!state_->done) return std::nullopt;
  std::optional<v1::NodeUsage> measured = std::exchange(state_->measured, std::nullopt);
  if (now < due_) return measured;
  due_ = now + interval_;
  state_->done = false;
  thread_.Post([state = state_] { state->Measure(); });
  return measured;
}

}  // namespace cadre::agent
