#include "rendezvous/service/replica.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "rendezvous/log/etcd_leadership.h"
#include "rendezvous/log/etcd_log.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/service/admission.h"
#include "rpc/status_details.h"

namespace cadre::service {
namespace {

// The pause after a state could not be opened: another server may succeed.
constexpr absl::Duration kOpenRetry = absl::Seconds(3);

}  // namespace

struct Replica::Impl {
  Impl(const ReplicaOptions& options, std::shared_ptr<log::EtcdClient> client, Server& server)
      : options(options), client(std::move(client)), server(server) {}

  void Run() {
    while (!StopsWithin(absl::ZeroDuration())) {
      absl::StatusOr<log::Leadership::Outcome> outcome = Campaign();
      if (!outcome.ok()) {
        StandBy(absl::StrCat("no leader is known, because ", outcome.status().message()));
      } else if (outcome->won == nullptr) {
        StandBy(outcome->leader.empty() ? "there is no leader yet"
                                        : absl::StrCat(outcome->leader, " leads"));
      } else if (Lead(*outcome->won)) {
        continue;
      }
      const bool broken = outcome.ok() && outcome->won != nullptr;
      if (outcome.ok()) outcome->won.reset();
      if (StopsWithin(broken ? kOpenRetry : kCampaignInterval)) return;
    }
  }

  absl::StatusOr<log::Leadership::Outcome> Campaign() {
    log::Leadership::Options leadership;
    leadership.client = client;
    leadership.prefix = options.etcd.prefix;
    leadership.address = options.address;
    // A leader elected meanwhile gives every node a whole lease from its election, so nodes that
    // are disconnected now find it in time.
    leadership.unconfirmed_limit = options.core.lease * 0.8;
    return log::Leadership::Campaign(leadership);
  }

  // Returns false if the state could not be opened.
  bool Lead(log::Leadership& leadership) {
    const MonoTime begin = MonoNow();
    absl::StatusOr<log::OpenedLog> opened = Open(leadership);
    if (!opened.ok()) {
      StandBy(std::string(opened.status().message()));
      return false;
    }
    const size_t replayed = opened->records.size();
    const auto core = std::make_shared<host::CoreThread>(options.core, options.log,
                                                         *std::move(opened), options.account);
    server.Serve(core);
    last_logged.clear();
    Log(absl::StrCat("this server leads (", replayed, " records in ",
                     absl::FormatDuration(absl::Trunc(MonoNow() - begin, absl::Milliseconds(1))),
                     ")"));
    absl::Status lost;
    while (lost.ok() && !StopsWithin(absl::ZeroDuration())) {
      lost = leadership.AwaitLoss(kCampaignInterval);
    }
    const absl::Status why =
        lost.ok() ? absl::UnavailableError("the server is shutting down")
                  : rpc::NotLeading(absl::StrCat("this server no longer leads: ", lost.message()));
    server.Refuse(why);
    if (!lost.ok()) Log(std::string(why.message()));
    core->Stop(why);
    return true;
  }

  absl::StatusOr<log::OpenedLog> Open(log::Leadership& leadership) {
    log::EtcdLogOptions log;
    log.client = client;
    log.prefix = options.etcd.prefix;
    log.leader_key = leadership.key();
    log.leader_revision = leadership.create_revision();
    log.on_deposed = [&leadership](absl::Status why) { leadership.MarkLost(std::move(why)); };
    log.new_server_id = options.core.server_id;
    log.clock = log::ThisClockBase();
    ASSIGN_OR_RETURN(log::OpenedLog opened, log::OpenEtcdLog(log));
    if (options.wrap) {
      ASSIGN_OR_RETURN(opened.log, options.wrap(std::move(opened.log)));
    }
    return opened;
  }

  void StandBy(const std::string& state) {
    server.Refuse(rpc::NotLeading(absl::StrCat(kStandby, ": ", state)));
    if (state != last_logged) Log(absl::StrCat(kStandby, ": ", state));
    last_logged = state;
  }

  void Log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  bool StopsWithin(absl::Duration duration) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_until(
        lock, std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(duration),
        [this] { return stopping; });
  }

  const ReplicaOptions options;
  const std::shared_ptr<log::EtcdClient> client;
  Server& server;
  // The last logged reason for being a standby.
  std::string last_logged;

  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;

  std::thread thread;
};

absl::StatusOr<std::unique_ptr<Replica>> Replica::Start(const ReplicaOptions& options,
                                                        Server& server) {
  ASSIGN_OR_RETURN(std::shared_ptr<log::EtcdClient> client, log::EtcdClient::Make(options.etcd));
  auto impl = std::make_unique<Impl>(options, std::move(client), server);
  impl->thread = std::thread([impl = impl.get()] { impl->Run(); });
  return std::unique_ptr<Replica>(new Replica(std::move(impl)));
}

Replica::Replica(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Replica::~Replica() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stopping = true;
    impl_->changed.notify_all();
  }
  impl_->thread.join();
}

}  // namespace cadre::service
