#include "worker_runtime/launched/launched_worker.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "cadre/status.h"
#include "rpc/frames/codec.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/environment/rank_places.h"
#include "worker_runtime/environment/worker_environment.h"
#include "worker_runtime/launched/meeting_place.h"
#include "worker_runtime/sockets/tcp_socket.h"
#include "worker_runtime/store/served_worker.h"
#include "worker_runtime/store/store_server.h"

namespace cadre::launched {
namespace {

using environment::Launch;

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

// Keys that Cadre uses among the user's keys.
constexpr char kLocationKey[] = "cadre/launch/seat/";
constexpr char kPlacedKey[] = "cadre/launch/seated";

// A rank's location as it publishes it; the word distinguishes two processes that claim the same
// rank.
struct LocationReport {
  environment::RankLocation location;
  std::string word;
};
template <typename Io>
void Fields(Io& io, LocationReport& m) {
  io(m.location, m.word);
}

// Rank 0's message to all ranks when they have connected, or why they have not.
struct PlaceAssignment {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;
  std::string address;  // of rank 0's node
  std::vector<environment::RankPlace> places;
};
template <typename Io>
void Fields(Io& io, PlaceAssignment& m) {
  io(m.code, m.message, m.address, m.places);
}

// Tells the user at the terminal which ranks this one waits for.
void PrintLine(const std::string& what) { std::fprintf(stderr, "cadre: %s\n", what.c_str()); }

std::string Readable(std::chrono::nanoseconds duration) {
  return absl::FormatDuration(absl::FromChrono(duration));
}

template <typename Message>
std::string Encoded(const Message& message) {
  std::string bytes;
  frames::FieldWriter writer(&bytes);
  writer(message);
  return bytes;
}

WorkerPlace PlaceOf(const Launch& launch) {
  WorkerPlace place;
  place.job = launch.name;
  place.generation = static_cast<uint64_t>(launch.restart_count) + 1;
  place.rank = launch.rank;
  place.world_size = launch.world_size;
  place.restart_count = launch.restart_count;
  return place;
}

class LaunchedWorker : public store::ServedWorker {
 public:
  LaunchedWorker(const Launch& launch, const store::StoreAddress& at)
      : store::ServedWorker(at, "rank 0", PlaceOf(launch)), launch_(launch) {}

  // Rank 0 waits, up to `others_exit_timeout`, until all others have disconnected, because the
  // store ends with it.
  ~LaunchedWorker() override {
    if (server_ != nullptr) server_->AwaitAlone(others_exit_timeout_);
  }

  // Publishes this rank's location. An error means that it was not published.
  Status PublishLocation();
  // Called by rank 0: waits for all ranks, and sends each its place.
  void AssignPlaces(const Options& options, const std::string& advice);
  // Waits until all ranks have connected.
  Status AwaitPlace(std::chrono::nanoseconds timeout);

  // Called by rank 0.
  void Serve(std::unique_ptr<store::StoreServer> server,
             std::chrono::nanoseconds others_exit_timeout) {
    server_ = std::move(server);
    others_exit_timeout_ = others_exit_timeout;
  }

 private:
  Result<std::vector<environment::RankLocation>> AwaitLocations(const Options& options,
                                                                const std::string& advice);
  // Called by rank 0: describes a rank that was refused and is therefore missing; may be empty.
  std::string Refused() const;
  std::string OwnAddress() const;

  const Launch launch_;
  std::unique_ptr<store::StoreServer> server_;
  std::chrono::nanoseconds others_exit_timeout_{};
};

Status LaunchedWorker::PublishLocation() {
  LocationReport report;
  report.location.local_rank = launch_.local_rank.value_or(-1);
  report.location.local_world_size = launch_.local_world_size.value_or(-1);
  report.location.world_size = launch_.world_size;
  report.location.machine = environment::ThisMachine();
  report.word = RandomToken();
  // Only one process can be this rank.
  const Status status =
      CompareAndSet(absl::StrCat(kLocationKey, launch_.rank), "", Encoded(report)).status();
  if (status.code() != StatusCode::kFailedPrecondition) return status;
  return FailedPreconditionError(absl::StrCat(
      "rank ", launch_.rank, " of ", launch_.name, " has called Worker::Connect() before (",
      launch_.launcher,
      " gave this process the rank): if that was another process that has ended, start all ranks "
      "anew"));
}

Result<std::vector<environment::RankLocation>> LaunchedWorker::AwaitLocations(
    const Options& options, const std::string& advice) {
  const MonoTime deadline = MonoNow() + options.connect_timeout;
  const MonoTime print_at = MonoNow() + options.first_notice_after;
  std::vector<environment::RankLocation> locations;
  bool printed = false;
  for (int rank = 0; rank < launch_.world_size; ++rank) {
    const std::string key = absl::StrCat(kLocationKey, rank);
    const auto get_until = [&](MonoTime until) {
      return Get(key, absl::ToChronoNanoseconds(until - MonoNow()));
    };
    Result<std::string> location = get_until(printed ? deadline : std::min(print_at, deadline));
    if (!location.ok() && !printed && MonoNow() < deadline) {
      printed = true;
      PrintLine(absl::StrCat("rank 0 waits at ", server_->endpoint(), " for rank ", rank, " of ",
                             launch_.world_size, " to call Worker::Connect(), and gives up after ",
                             Readable(options.connect_timeout), Refused()));
      location = get_until(deadline);
    }
    if (!location.ok()) {
      return DeadlineExceededError(absl::StrCat(
          "rank ", rank, " of ", launch_.world_size, " has not called Worker::Connect() within ",
          Readable(options.connect_timeout), Refused(), advice));
    }
    ASSIGN_OR_RETURN(const LocationReport report, frames::ParseMessage<LocationReport>(*location));
    locations.push_back(report.location);
  }
  return locations;
}

void LaunchedWorker::AssignPlaces(const Options& options, const std::string& advice) {
  PlaceAssignment assignment;
  const Result<std::vector<environment::RankLocation>> locations = AwaitLocations(options, advice);
  Status status = locations.status();
  if (status.ok()) {
    Result<std::vector<environment::RankPlace>> places = environment::PlaceRanks(*locations);
    status = places.status();
    if (status.ok()) assignment.places = *std::move(places);
  }
  assignment.address = OwnAddress();
  assignment.code = static_cast<absl::StatusCode>(status.code());
  assignment.message = std::string(status.message());
  Set(kPlacedKey, Encoded(assignment)).IgnoreError();
}

Status LaunchedWorker::AwaitPlace(std::chrono::nanoseconds timeout) {
  const Result<std::string> text =
      Get(kPlacedKey, timeout + absl::ToChronoNanoseconds(store::kCallMargin));
  if (text.status().code() == StatusCode::kDeadlineExceeded) {
    return DeadlineExceededError(absl::StrCat("rank 0 did not report within ", Readable(timeout),
                                              " that all ranks have connected"));
  }
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(const PlaceAssignment assignment, frames::ParseMessage<PlaceAssignment>(*text));
  if (assignment.code != absl::StatusCode::kOk) {
    return Status(static_cast<StatusCode>(assignment.code), assignment.message);
  }
  if (assignment.places.size() != static_cast<size_t>(launch_.world_size)) {
    return InvalidArgumentError(
        absl::StrCat("rank 0 was told that there are ", assignment.places.size(), " ranks, rank ",
                     launch_.rank, " that there are ", launch_.world_size, " (WORLD_SIZE)"));
  }
  const environment::RankPlace& own = assignment.places[launch_.rank];
  WorkerPlace at = place();
  at.local_rank = own.local_rank;
  at.local_world_size = own.local_world_size;
  at.node_rank = own.node_rank;
  at.nodes = own.nodes;
  // On rank 0's own node its host name may mean loopback.
  at.address = own.node_rank == 0 ? assignment.address : OwnAddress();
  MoveTo(at);
  return OkStatus();
}

std::string LaunchedWorker::Refused() const {
  std::string why;
  const int rank = server_->refused_rank();
  if (rank >= 0) {
    why = absl::StrCat("; a process that says it is rank ", rank,
                       " did not prove that it knows the secret (CADRE_SECRET_FILE), or encrypts "
                       "where this rank does not, or the other way round (CADRE_ENCRYPT)");
  }
  if (server_->lacked_descriptors()) {
    absl::StrAppend(&why,
                    "; rank 0 had no file descriptors left for more connections (`ulimit -n`)");
  }
  return why;
}

std::string LaunchedWorker::OwnAddress() const {
  const auto* file = std::get_if<environment::ThroughFile>(&launch_.meeting);
  if (file != nullptr) return file->address;
  // This node's address for ranks of other nodes: the local address of the connection to rank 0.
  // Rank 0 uses the address at which the others reached it.
  const std::string address = server_ == nullptr ? "" : server_->address_reached();
  return address.empty() ? local_address() : address;
}

// Rank 0 serves the store and publishes its address.
Result<std::unique_ptr<LaunchedWorker>> ConnectFirst(const Launch& launch, MeetingPlace& meeting,
                                                     const Options& options) {
  ASSIGN_OR_RETURN(StoreListener store_listener, meeting.Open());
  ASSIGN_OR_RETURN(std::unique_ptr<store::StoreServer> server,
                   store::StoreServer::Start(std::move(store_listener.listener), launch.world_size,
                                             store_listener.key));
  auto worker = std::make_unique<LaunchedWorker>(
      launch, store::StoreAddress{server->endpoint(), store_listener.key});
  const std::string endpoint = server->endpoint();
  worker->Serve(std::move(server), options.others_exit_timeout);
  RETURN_IF_ERROR(worker->PublishLocation());
  RETURN_IF_ERROR(meeting.Announce(store_listener, endpoint));
  worker->AssignPlaces(options, meeting.Advice());
  meeting.Close();
  return worker;
}

// Retries, since rank 0 may not be listening yet, and its published address may be left over from
// an earlier launch.
Result<std::unique_ptr<LaunchedWorker>> ConnectToFirst(const Launch& launch, MeetingPlace& meeting,
                                                       const Options& options) {
  const MonoTime deadline = MonoNow() + options.connect_timeout;
  const MonoTime print_at = MonoNow() + options.first_notice_after;
  bool printed = false;
  MonoTime refused_until = MonoTime::Never();
  absl::Duration pause = kFirstPause;
  while (true) {
    const Result<store::StoreAddress> at = meeting.Find();
    if (!at.ok() && at.status().code() != StatusCode::kNotFound) return at.status();
    Status status = at.status();
    if (at.ok()) {
      auto worker = std::make_unique<LaunchedWorker>(launch, *at);
      status = worker->PublishLocation();
      if (status.ok()) return worker;
    }
    const bool refused = status.code() == StatusCode::kPermissionDenied;
    if (!refused) refused_until = MonoTime::Never();
    if (refused && refused_until == MonoTime::Never()) {
      refused_until = MonoNow() + meeting.RefusalTimeout();
    }
    const bool may_come =
        status.code() == StatusCode::kNotFound || status.code() == StatusCode::kUnavailable ||
        status.code() == StatusCode::kDeadlineExceeded || (refused && MonoNow() < refused_until);
    if (!may_come) return status;
    if (MonoNow() + pause > deadline) {
      return DeadlineExceededError(absl::StrCat(
          "rank ", launch.rank, " did not find rank 0 within ", Readable(options.connect_timeout),
          ": ", status.message(), meeting.Advice()));
    }
    if (!printed && MonoNow() >= print_at) {
      printed = true;
      PrintLine(absl::StrCat("rank ", launch.rank, " of ", launch.world_size,
                             " is still waiting for rank 0, and gives up after ",
                             Readable(options.connect_timeout), ": ", status.message(),
                             meeting.Advice()));
    }
    absl::SleepFor(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

Result<std::unique_ptr<MeetingPlace>> MeetingPlaceOf(const Launch& launch,
                                                     const environment::GetVariable& get) {
  if (const auto* file = std::get_if<environment::ThroughFile>(&launch.meeting)) {
    return MeetThroughFile(*file, launch.one_node.value_or(false));
  }
  // A single rank uses any free port, so it cannot collide with another program's.
  if (launch.world_size == 1)
    return MeetAtAddress({sockets::kLoopback, 0}, {RandomToken(), false}, true);
  ASSIGN_OR_RETURN(const environment::Secret secret, environment::ReadSecret(get));
  if (const auto* through = std::get_if<environment::ThroughTorchrun>(&launch.meeting)) {
    return MeetThroughTorchrun(*through, secret, launch.one_node.value_or(false));
  }
  return MeetAtAddress(std::get<environment::AtAddress>(launch.meeting), secret, launch.one_node);
}

}  // namespace

Result<std::unique_ptr<Worker>> Connect(const Launch& launch, const environment::GetVariable& get,
                                        const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MeetingPlace> meeting, MeetingPlaceOf(launch, get));
  ASSIGN_OR_RETURN(std::unique_ptr<LaunchedWorker> worker,
                   launch.rank == 0 ? ConnectFirst(launch, *meeting, options)
                                    : ConnectToFirst(launch, *meeting, options));
  RETURN_IF_ERROR(worker->AwaitPlace(options.connect_timeout));
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace cadre::launched
