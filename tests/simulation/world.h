// State that all parts of one simulated history share: virtual time, randomness, and the trace of
// events. One thread.
#ifndef CADRE_TESTS_SIMULATION_WORLD_H_
#define CADRE_TESTS_SIMULATION_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/time.h"

namespace cadre::simulation {

// The only source of randomness in a simulated history: the same seed gives the same numbers on
// every machine. SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Returns 0 to n - 1.
  int Below(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  // Returns low to high, both included.
  int Between(int low, int high) { return low + Below(high - low + 1); }
  bool Percent(double chance) { return Below(1000000) < chance * 10000; }
  // Returns whole microseconds from low (included) to high (excluded).
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const int64_t span = absl::ToInt64Microseconds(high - low);
    if (span <= 0) return low;
    return low + absl::Microseconds(static_cast<int64_t>(Next() % static_cast<uint64_t>(span)));
  }

 private:
  uint64_t state_;
};

// Runs events in the order of their times; events of the same time run in the order of insertion.
class Schedule {
 public:
  MonoTime now() const { return now_; }
  uint64_t events() const { return events_; }
  void At(MonoTime at, std::function<void()> what) {
    heap_.push_back({std::max(at, now_), next_++, std::move(what)});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }
  void In(absl::Duration delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }
  // Returns false, with the time advanced to `until`, if no event is due by then.
  bool RunNext(MonoTime until) {
    if (heap_.empty() || heap_.front().at > until) {
      now_ = std::max(now_, until);
      return false;
    }
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    const Entry entry = std::move(heap_.back());
    heap_.pop_back();
    now_ = entry.at;
    ++events_;
    entry.what();
    return true;
  }

 private:
  struct Entry {
    MonoTime at;
    uint64_t number;
    std::function<void()> what;
  };
  static bool Later(const Entry& a, const Entry& b) {
    return a.at != b.at ? a.at > b.at : a.number > b.number;
  }

  MonoTime now_;
  uint64_t next_ = 0;
  uint64_t events_ = 0;
  std::vector<Entry> heap_;
};

// Always keeps a hash of all events; keeps the last ones as text on demand.
class Trace {
 public:
  static constexpr size_t kLinesKept = 400;

  void KeepLines() { kept_ = true; }
  bool kept() const { return kept_; }
  void Add(MonoTime at, absl::string_view text) {
    if (!kept_) return;
    lines_.push_back(
        absl::StrCat(absl::FormatDuration(absl::Microseconds(at.micros())), "  ", text));
    if (lines_.size() > kLinesKept) lines_.pop_front();
  }
  void Mix(uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001b3; }
  uint64_t hash() const { return hash_; }
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  bool kept_ = false;
  uint64_t hash_ = 0xcbf29ce484222325;
  std::deque<std::string> lines_;
};

// One machine's monotonic clock: it starts at another moment and drifts a little.
struct Clock {
  int64_t offset_us = 0;
  int64_t drift_ppm = 0;

  MonoTime Local(MonoTime world) const {
    const int64_t us = world.micros();
    return MonoTime::FromMicros(offset_us + us + us / 1000000 * drift_ppm +
                                us % 1000000 * drift_ppm / 1000000);
  }
  // Returns the first moment at which the machine's clock has reached `local`.
  MonoTime World(MonoTime local) const {
    if (local == MonoTime::Never()) return local;
    const int64_t us = local.micros() - offset_us;
    MonoTime world = MonoTime::FromMicros(
        us - static_cast<int64_t>(static_cast<double>(us) * drift_ppm / (1000000.0 + drift_ppm)));
    while (Local(world) < local) world = MonoTime::FromMicros(world.micros() + 1);
    return world;
  }
};

struct World {
  explicit World(uint64_t seed) : random(seed) {}

  MonoTime now() const { return schedule.now(); }
  // Records one event: `kind` and `detail` go into the hash; `text` is called only if text is kept.
  template <typename Text>
  void Note(uint64_t kind, uint64_t detail, const Text& text) {
    trace.Mix(static_cast<uint64_t>(now().micros()));
    trace.Mix(kind << 32 ^ detail);
    if (trace.kept()) trace.Add(now(), text());
  }

  Schedule schedule;
  Random random;
  Trace trace;
  // The faults are over: nothing fails by itself any more.
  bool calm = false;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_WORLD_H_
