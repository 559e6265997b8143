#include "tests/soak/soak.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "tests/soak/census.h"
#include "tests/soak/soak_cluster.h"

namespace cadre {
namespace {

constexpr int kTickMs = 20;
// From the last fault until everything runs again and nothing is left of what was.
constexpr absl::Duration kWholeWithin = absl::Seconds(90);
constexpr absl::Duration kGoneWithin = absl::Seconds(20);

// How many of each role two whole clusters have, by Role.
using Population = std::array<int, kRoles>;
constexpr int kClusters = 2;
constexpr Population kWholePopulation = {kClusters, kClusters* Cluster::kNodes,
                                         kClusters* Cluster::kNodes, kClusters* Cluster::kWorkers,
                                         0};

class Soak {
 public:
  explicit Soak(const SoakOptions& options)
      : options_(options),
        random_(options.seed),
        directory_(MakeDirectory()),
        mark_(absl::StrCat(getpid(), "-", options.seed)),
        cgroup_(absl::StrCat("soak-", getpid())),
        shared_before_(SharedMemoryFiles()),
        begun_(MonoNow()) {}
  ~Soak() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  SoakReport Run();

 private:
  // Short, for the sockets in it.
  static std::string MakeDirectory() {
    char path[] = "/tmp/soakXXXXXX";
    return mkdtemp(path) == nullptr ? "" : path;
  }

  bool Start();
  void InjectOne();
  // False, with a finding, when it does not become so in time.
  bool AwaitWhole();
  // What keeps it from being whole; empty: nothing.
  std::string NotWhole();
  void Measure();
  void EndAll();
  void FindLeftovers();
  Series& Count(const std::string& name, double slack_part, int64_t slack);
  std::string Table() const;
  double Minutes() const { return absl::ToDoubleMinutes(MonoNow() - begun_); }

  const SoakOptions options_;
  std::mt19937 random_;
  const std::string directory_;
  const std::string mark_;
  const OwnCgroup cgroup_;
  const std::set<std::string> shared_before_;
  const MonoTime begun_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::array<bool, kClusters> moved_ = {};
  std::map<std::string, int> injected_;
  std::vector<double> looked_at_;  // minutes
  std::vector<Series> series_;
  SoakReport report_;
};

bool Soak::Start() {
  for (const bool long_lived : {false, true}) {
    ClusterOptions cluster;
    cluster.name = long_lived ? "long-lived" : "mortal";
    cluster.directory = absl::StrCat(directory_, "/", long_lived ? "l" : "m");
    cluster.mark = mark_;
    cluster.long_lived = long_lived;
    mkdir(cluster.directory.c_str(), 0700);
    clusters_.push_back(std::make_unique<Cluster>(cluster));
    if (!clusters_.back()->Start()) {
      report_.findings.push_back(cluster.name + ": does not start");
      return false;
    }
  }
  return AwaitWhole();
}

void Soak::InjectOne() {
  // A victim may just be away: then another one.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto fault = static_cast<Fault>(random_() % kFaults);
    const std::string done = clusters_[random_() % kClusters]->Inject(fault, random_);
    if (done.empty()) continue;
    ++injected_[NameOf(fault)];
    ++report_.faults;
    absl::PrintF("%6.2f min  %s\n", Minutes(), done);
    std::fflush(stdout);
    return;
  }
}

std::string Soak::NotWhole() {
  std::string why;
  for (int i = 0; i < kClusters; ++i) {
    clusters_[i]->Poll();
    // Steps are looked at more often than they are made.
    moved_[i] = moved_[i] || clusters_[i]->HasMoved();
    if (!moved_[i]) absl::StrAppend(&why, "no steps, ", clusters_[i]->WorkersText(), "\n");
  }
  if (!why.empty()) return why;
  Population population = {};
  std::set<pid_t> parents = {getpid()};
  for (const ProcessEntry& process : MarkedProcesses(mark_)) {
    ++population[static_cast<int>(process.role)];
    parents.insert(process.pid);
    absl::StrAppend(&why, process.pid, " ", std::string(1, process.state), " ", process.command,
                    "\n");
  }
  if (population != kWholePopulation) return absl::StrCat("processes:\n", why);
  return absl::StrJoin(Zombies(parents), "; ");
}

bool Soak::AwaitWhole() {
  const MonoTime deadline = MonoNow() + kWholeWithin;
  moved_ = {};
  std::string why;
  do {
    poll(nullptr, 0, kTickMs);
    why = NotWhole();
    if (why.empty()) return true;
  } while (MonoNow() < deadline);
  report_.findings.push_back(absl::StrFormat("after %.1f min not whole within %s: %s", Minutes(),
                                             absl::FormatDuration(kWholeWithin), why));
  return false;
}

Series& Soak::Count(const std::string& name, double slack_part, int64_t slack) {
  for (Series& one : series_) {
    if (one.name == name) return one;
  }
  series_.push_back({name, slack_part, slack, {}});
  return series_.back();
}

void Soak::Measure() {
  looked_at_.push_back(Minutes());
  const Cluster& mortal = *clusters_[0];
  const Cluster& old = *clusters_[1];
  const auto look_at = [this](const std::string& who, pid_t pid) {
    const ProcessUse use = UseOf(pid);
    Count(who + " descriptors", 0, 2).values.push_back(use.descriptors);
    Count(who + " threads", 0, 2).values.push_back(use.threads);
    // What fills up to a bound of its own: the timeline (256 generations), earlier failures (64),
    // and what an allocator holds for each thread.
    Count(who + " own KiB", 0, 512).values.push_back(use.own_kib);
  };
  look_at("server", old.server_pid());
  look_at("launcher", old.launcher_pid(0));
  look_at("supervisor", old.supervisor_pid(0));
  int agents = 0;
  for (const auto& cluster : clusters_) {
    agents += CountEntries(absl::StrCat(cluster->runtime_dir(), "/cadre-", getuid()), "agent-");
  }
  Count("agent directories", 0, 0).values.push_back(agents);
  Count("cgroups", 0, 0)
      .values.push_back(cgroup_.path().empty() ? 0 : CountDirectories(cgroup_.path()));
  Count("/dev/shm files", 0, 0).values.push_back(static_cast<int64_t>(SharedMemoryFiles().size()));
  // A log of records is compacted when it has grown.
  Count("state KiB, mortal", 0.5, 1024).values.push_back(BytesIn(mortal.state_dir()) / 1024);
  Count("state KiB", 0.5, 1024).values.push_back(BytesIn(old.state_dir()) / 1024);
}

void Soak::EndAll() {
  for (const auto& cluster : clusters_) {
    for (std::string& line : cluster->End()) report_.findings.push_back(std::move(line));
    for (const auto& [status, times] : cluster->unasked_ends()) {
      report_.findings.push_back(absl::StrCat(cluster->name(), ": a launcher ended with ", status,
                                              " by itself, ", times, " times"));
    }
  }
  FindLeftovers();
}

void Soak::FindLeftovers() {
  const MonoTime deadline = MonoNow() + kGoneWithin;
  std::vector<std::string> left;
  do {
    left.clear();
    for (const ProcessEntry& process : MarkedProcesses(mark_)) {
      left.push_back(absl::StrCat("process ", process.pid, " is left: ", process.command));
    }
    for (std::string& zombie : Zombies({getpid()})) left.push_back(std::move(zombie));
    for (const auto& cluster : clusters_) {
      const std::string directory = absl::StrCat(cluster->runtime_dir(), "/cadre-", getuid());
      if (const int agents = CountEntries(directory, ""); agents > 0) {
        left.push_back(absl::StrCat(agents, " entries are left in ", directory));
      }
    }
    if (const int cgroups = cgroup_.path().empty() ? 0 : CountDirectories(cgroup_.path());
        cgroups > 0) {
      left.push_back(absl::StrCat(cgroups, " cgroups are left in ", cgroup_.path()));
    }
    for (const std::string& file : SharedMemoryFiles()) {
      if (shared_before_.count(file) == 0) left.push_back("/dev/shm/" + file + " is left");
    }
    if (left.empty()) return;
    poll(nullptr, 0, kTickMs);
  } while (MonoNow() < deadline);
  report_.findings.insert(report_.findings.end(), left.begin(), left.end());
}

std::string Soak::Table() const {
  std::string table = absl::StrFormat("%d faults in %.1f minutes:", report_.faults, Minutes());
  for (const auto& [name, times] : injected_) absl::StrAppend(&table, " ", name, " ", times, ",");
  table.back() = ';';
  for (const auto& cluster : clusters_) {
    absl::StrAppend(&table, " generations of ", cluster->name(), ": ", cluster->generation(), ";");
  }
  table.back() = '\n';
  if (looked_at_.empty()) return table;
  absl::StrAppendFormat(&table, "%-24s%9s%9s%9s%9s%9s\n", "", "first", "middle", "last", "least",
                        "most");
  for (const Series& one : series_) {
    absl::StrAppendFormat(&table, "%-24s%9d%9d%9d%9d%9d\n", one.name, one.values.front(),
                          one.values[one.values.size() / 2], one.values.back(),
                          *std::min_element(one.values.begin(), one.values.end()),
                          *std::max_element(one.values.begin(), one.values.end()));
  }
  return table;
}

SoakReport Soak::Run() {
  if (!Start()) return report_;
  const MonoTime end = begun_ + options_.length;
  MonoTime next_fault = MonoNow() + options_.period;
  MonoTime next_look = MonoNow() + options_.measure_every;
  bool whole = true;
  while (whole && MonoNow() < end) {
    poll(nullptr, 0, kTickMs);
    for (const auto& cluster : clusters_) cluster->Poll();
    if (MonoNow() >= next_fault) {
      InjectOne();
      next_fault = next_fault + options_.period;
    }
    if (MonoNow() < next_look) continue;
    whole = AwaitWhole();
    if (whole) Measure();
    next_fault = MonoNow() + options_.period;
    next_look = MonoNow() + options_.measure_every;
  }
  if (whole && AwaitWhole()) Measure();
  report_.table = Table();
  EndAll();
  for (std::string& line : Growing(series_)) report_.findings.push_back(std::move(line));
  return report_;
}

}  // namespace

SoakReport RunSoak(const SoakOptions& options) { return Soak(options).Run(); }

}  // namespace cadre
