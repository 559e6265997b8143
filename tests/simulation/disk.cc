#include "tests/simulation/disk.h"

#include <set>
#include <string>
#include <utility>

namespace cadre::simulation {
namespace {

// How long records that were promised to be on the disk are not, with kPersistAfterSending.
constexpr absl::Duration kLateBy = absl::Milliseconds(20);

// What a log without the last generation of each job would hold.
std::vector<v1::Record> WithoutLastGenerations(const std::vector<v1::Record>& records) {
  std::vector<v1::Record> kept;
  std::set<std::string> dropped;
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->has_generation_formed() && dropped.insert(record->job()).second) continue;
    kept.insert(kept.begin(), *record);
  }
  return kept;
}

}  // namespace

class Disk::Log final : public log::RecordLog {
 public:
  Log(Disk& disk, std::function<void()> crash) : disk_(disk), crash_(std::move(crash)) {}

  uint64_t server_id() const override { return disk_.server_id_; }
  bool has_one_owner() const override { return true; }
  absl::Status Append(const log::RecordRows& records) override {
    return disk_.Append(records.Decoded(), crash_);
  }
  bool WantsCompaction() const override { return disk_.appended_ > disk_.plan_.compact_after; }
  absl::Status Compact(log::Shortener& shortener, const std::atomic<bool>&) override {
    for (const v1::Record& record : disk_.durable_) shortener.Add(record);
    for (const v1::Record& record : disk_.unsynced_) shortener.Add(record);
    return disk_.Compact(shortener.Take().Decoded());
  }

 private:
  Disk& disk_;
  const std::function<void()> crash_;
};

Disk::Disk(World& world, const Plan& plan, Mutation mutation)
    : world_(world), plan_(plan), mutation_(mutation), server_id_(world.random.Next()) {}

log::OpenedLog Disk::Open(std::function<void()> crash) {
  log::OpenedLog opened;
  opened.log = std::make_unique<Log>(*this, std::move(crash));
  opened.records =
      mutation_ == Mutation::kReuseGeneration ? WithoutLastGenerations(durable_) : durable_;
  // A server that lacks records goes on from what it has, as a real log that lost them would.
  durable_ = opened.records;
  return opened;
}

void Disk::LoseAll() {
  durable_.clear();
  unsynced_.clear();
  appended_ = 0;
  server_id_ = world_.random.Next();
}

absl::Status Disk::Append(const std::vector<v1::Record>& records,
                          const std::function<void()>& crash) {
  if (!state_.ok()) return state_;
  const bool crashes = !world_.calm && world_.random.Percent(plan_.odds.crash_while_saving);
  const bool before = crashes && world_.random.Percent(50);
  if (before) {
    crash();
    return absl::UnavailableError("the process died");
  }
  appended_ += records.size();
  if (mutation_ == Mutation::kPersistAfterSending) {
    unsynced_.insert(unsynced_.end(), records.begin(), records.end());
    world_.schedule.In(kLateBy, [this] { Sync(); });
  } else {
    durable_.insert(durable_.end(), records.begin(), records.end());
  }
  if (crashes) crash();
  return absl::OkStatus();
}

void Disk::Sync() {
  durable_.insert(durable_.end(), unsynced_.begin(), unsynced_.end());
  unsynced_.clear();
}

absl::Status Disk::Compact(const std::vector<v1::Record>& snapshot) {
  if (!state_.ok()) return state_;
  durable_ = snapshot;
  unsynced_.clear();
  appended_ = 0;
  return absl::OkStatus();
}

}  // namespace cadre::simulation
