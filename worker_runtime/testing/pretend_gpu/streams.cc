#include "worker_runtime/testing/pretend_gpu/streams.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

namespace cadre::pretend_gpu {
namespace {

using Lock = std::unique_lock<std::mutex>;

std::atomic<int> streams{0};

struct Seen {
  std::mutex mutex;
  Moment moment;
};

Seen& SeenByHost() {
  static auto* const seen = new Seen;
  return *seen;
}

void Merge(const Moment& from, Moment* to) {
  for (const auto& [stream, job] : from) {
    uint64_t& known = (*to)[stream];
    known = std::max(known, job);
  }
}

bool Has(const Moment& moment, int stream, uint64_t job) {
  const auto found = moment.find(stream);
  return found != moment.end() && found->second >= job;
}

}  // namespace

Stream::Stream(int device, std::string name)
    : device_(device),
      number_(++streams),
      name_(!name.empty()
                ? std::move(name)
                : "stream " + std::to_string(number_) + " of GPU " + std::to_string(device)) {
  std::thread([this] { Run(); }).detach();
}

uint64_t Stream::Push(Job job) {
  uint64_t number = 0;
  {
    const Lock lock(mutex_);
    jobs_.push_back(std::move(job));
    number = ++pushed_;
  }
  changed_.notify_all();
  return number;
}

Moment Stream::Pushed() const {
  const Lock lock(mutex_);
  Moment moment = after_;
  moment[number_] = pushed_;
  return moment;
}

void Stream::ComeAfter(const Moment& moment) {
  const Lock lock(mutex_);
  Merge(moment, &after_);
}

uint64_t Stream::done() const {
  const Lock lock(mutex_);
  return done_;
}

void Stream::WaitFor(uint64_t job) const {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= job; });
}

void Stream::Hold(bool hold) {
  {
    const Lock lock(mutex_);
    held_ = hold;
  }
  changed_.notify_all();
}

void Stream::Close() {
  {
    const Lock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void Stream::Run() {
  for (;;) {
    Job job;
    {
      Lock lock(mutex_);
      changed_.wait(lock,
                    [this] { return (!jobs_.empty() && !held_) || (jobs_.empty() && closed_); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
    job = nullptr;  // what it holds goes before it counts as done
    {
      const Lock lock(mutex_);
      ++done_;
    }
    changed_.notify_all();
  }
}

void HostHasSeen(const Moment& moment) {
  Seen& seen = SeenByHost();
  const std::lock_guard<std::mutex> lock(seen.mutex);
  Merge(moment, &seen.moment);
}

bool ComesBefore(const Stream& earlier, uint64_t job, const Stream& stream) {
  if (earlier.number() == stream.number()) return true;
  if (Has(stream.Pushed(), earlier.number(), job)) return true;
  Seen& seen = SeenByHost();
  const std::lock_guard<std::mutex> lock(seen.mutex);
  return Has(seen.moment, earlier.number(), job);
}

std::shared_ptr<Event::Mark> Event::mark() const {
  const Lock lock(mutex_);
  return mark_;
}

void Event::Record(Stream& stream) {
  const auto mark = std::make_shared<Mark>();
  // What it stands for is complete before the mark itself is pushed.
  mark->moment = stream.Pushed();
  stream.Push([mark] {
    {
      const Lock lock(mark->mutex);
      mark->happened = true;
      mark->time = std::chrono::steady_clock::now();
    }
    mark->changed.notify_all();
  });
  const Lock lock(mutex_);
  mark_ = mark;
}

void Event::MakeWait(Stream& stream) const {
  const auto waited_for = mark();
  if (waited_for == nullptr) return;
  stream.ComeAfter(waited_for->moment);
  stream.Push([waited_for] {
    Lock lock(waited_for->mutex);
    waited_for->changed.wait(lock, [&] { return waited_for->happened; });
  });
}

bool Event::Happened() const {
  const auto asked = mark();
  if (asked == nullptr) return true;
  {
    const Lock lock(asked->mutex);
    if (!asked->happened) return false;
  }
  HostHasSeen(asked->moment);
  return true;
}

void Event::Wait() const {
  const auto waited_for = mark();
  if (waited_for == nullptr) return;
  {
    Lock lock(waited_for->mutex);
    waited_for->changed.wait(lock, [&] { return waited_for->happened; });
  }
  HostHasSeen(waited_for->moment);
}

bool Event::recorded() const { return mark() != nullptr; }

std::chrono::steady_clock::time_point Event::time() const {
  const auto asked = mark();
  if (asked == nullptr) return {};
  const Lock lock(asked->mutex);
  return asked->time;
}

}  // namespace cadre::pretend_gpu
