#include "rendezvous/log/etcd_leadership.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace cadre::log {
namespace {

std::chrono::steady_clock::time_point In(absl::Duration duration) {
  return std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(duration);
}

std::string LeaderKey(const std::string& prefix) { return absl::StrCat(prefix, "leader"); }

}  // namespace

absl::StatusOr<Leadership::Outcome> Leadership::Campaign(const Options& options) {
  const std::string key = LeaderKey(options.prefix);
  Outcome outcome;
  etcdserverpb::RangeRequest range;
  range.set_key(key);
  ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse found, options.client->Range(range));
  if (found.kvs_size() > 0) {
    outcome.leader = found.kvs(0).value();
    return outcome;
  }
  const MonoTime granted_at = MonoNow();
  ASSIGN_OR_RETURN(const etcdserverpb::LeaseGrantResponse lease,
                   options.client->Grant(options.ttl));
  etcdserverpb::TxnRequest request;
  CreatedAt(key, 0, request.add_compare());
  PutKey(key, options.address, lease.id(), request.add_success());
  GetKey(key, request.add_failure());
  ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse response, options.client->Txn(request));
  int64_t revision = response.header().revision();
  if (!response.succeeded()) {
    const auto& kvs = response.responses(0).response_range().kvs();
    const bool own = kvs.size() > 0 && kvs[0].lease() == lease.id();
    if (!own) {
      options.client->Revoke(lease.id()).IgnoreError();
      if (kvs.size() > 0) outcome.leader = kvs[0].value();
      return outcome;
    }
    // The first attempt was carried out, although its answer was lost.
    revision = kvs[0].create_revision();
  }
  outcome.leader = options.address;
  outcome.won.reset(
      new Leadership(options, lease.id(), revision, granted_at, absl::Seconds(lease.ttl())));
  return outcome;
}

Leadership::Leadership(const Options& options, int64_t lease, int64_t create_revision,
                       MonoTime confirmed_at, absl::Duration ttl)
    : options_(options),
      key_(LeaderKey(options.prefix)),
      lease_(lease),
      create_revision_(create_revision),
      ttl_(ttl),
      confirmed_at_(confirmed_at),
      thread_([this] { Renew(); }) {}

Leadership::~Leadership() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
  // If this fails the lease expires by itself.
  options_.client->Revoke(lease_).IgnoreError();
}

void Leadership::MarkLost(absl::Status why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  MarkLostLocked(std::move(why));
}

void Leadership::MarkLostLocked(absl::Status why) {
  if (lost_.ok()) lost_ = std::move(why);
  changed_.notify_all();
}

absl::Status Leadership::AwaitLoss(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, In(timeout), [this] { return !lost_.ok(); });
  // Checked here too, in case the renewing thread still waits for an answer, or this process was
  // suspended.
  const absl::Duration unconfirmed = MonoNow() - confirmed_at_;
  if (unconfirmed > options_.unconfirmed_limit) {
    MarkLostLocked(absl::UnavailableError(
        absl::StrCat("etcd has not confirmed the lease for ",
                     absl::FormatDuration(absl::Trunc(unconfirmed, absl::Milliseconds(100))))));
  }
  return lost_;
}

void Leadership::Renew() {
  std::unique_lock<std::mutex> lock(mutex_);
  absl::Duration pause = ttl_ / 4;
  for (;;) {
    if (changed_.wait_until(lock, In(pause), [this] { return ending_ || !lost_.ok(); })) return;
    lock.unlock();
    const MonoTime sent_at = MonoNow();
    const absl::StatusOr<absl::Duration> left = options_.client->KeepAlive(lease_);
    lock.lock();
    pause = left.ok() ? ttl_ / 4 : kRenewalRetry;
    if (left.ok() && *left > absl::ZeroDuration()) {
      confirmed_at_ = sent_at;
    } else if (left.ok()) {
      MarkLostLocked(absl::UnavailableError("its lease in etcd has expired"));
    }
  }
}

}  // namespace cadre::log
