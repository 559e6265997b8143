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
#include "rpc/frames/messages.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/environment/machine.h"
#include "worker_runtime/environment/seats.h"
#include "worker_runtime/environment/secret.h"
#include "worker_runtime/launched/address_meeting.h"
#include "worker_runtime/launched/file_meeting.h"
#include "worker_runtime/launched/meeting_place.h"
#include "worker_runtime/launched/torchrun_meeting.h"
#include "worker_runtime/store/addresses.h"
#include "worker_runtime/store/served_worker.h"
#include "worker_runtime/store/store_server.h"

namespace cadre::launched {
namespace {

using environment::Launch;

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

// Keys of our own among the user's.
constexpr char kSeat[] = "cadre/launch/seat/";
constexpr char kSeated[] = "cadre/launch/seated";

// A rank's seat as it takes it: the word tells two processes of one rank from each other.
struct TakenSeat {
  environment::Seat seat;
  std::string word;
};
template <typename Io>
void Fields(Io& io, TakenSeat& m) {
  io(m.seat, m.word);
}

// What rank 0 says to all when they have come, or why they do not.
struct Seated {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;
  std::string address;  // of rank 0's node
  std::vector<environment::SeatPlace> places;
};
template <typename Io>
void Fields(Io& io, Seated& m) {
  io(m.code, m.message, m.address, m.places);
}

// A person before a silent terminal wants to know for whom it waits.
void Tell(const std::string& what) { std::fprintf(stderr, "cadre: %s\n", what.c_str()); }

std::string Readable(std::chrono::nanoseconds duration) {
  return absl::FormatDuration(absl::FromChrono(duration));
}

template <typename Message>
std::string Written(const Message& message) {
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

  // Rank 0 waits for all others that are connected, up to `farewell`, because the store goes with
  // it.
  ~LaunchedWorker() override {
    if (server_ != nullptr) server_->AwaitAlone(farewell_);
  }

  // Tells the others where this rank is. Everything but OK: it is not known to them.
  Status TakeSeat();
  // Of rank 0: waits for all, and tells everybody.
  void SeatAll(const Options& options, const std::string& advice);
  // Waits until all ranks are there.
  Status FindPlace(std::chrono::nanoseconds patience);

  // Of rank 0.
  void Serve(std::unique_ptr<store::StoreServer> server, std::chrono::nanoseconds farewell) {
    server_ = std::move(server);
    farewell_ = farewell;
  }

 private:
  Result<std::vector<environment::Seat>> AwaitSeats(const Options& options,
                                                    const std::string& advice);
  // Of rank 0: why somebody may be meant to come and is not in; may be empty.
  std::string Refused() const;
  std::string OwnAddress() const;

  const Launch launch_;
  std::unique_ptr<store::StoreServer> server_;
  std::chrono::nanoseconds farewell_{};
};

Status LaunchedWorker::TakeSeat() {
  TakenSeat taken;
  taken.seat.local_rank = launch_.local_rank.value_or(-1);
  taken.seat.local_world_size = launch_.local_world_size.value_or(-1);
  taken.seat.world_size = launch_.world_size;
  taken.seat.machine = environment::ThisMachine();
  taken.word = RandomToken();
  // Only one process can be this rank.
  const Status status =
      CompareAndSet(absl::StrCat(kSeat, launch_.rank), "", Written(taken)).status();
  if (status.code() != StatusCode::kFailedPrecondition) return status;
  return FailedPreconditionError(absl::StrCat(
      "rank ", launch_.rank, " of ", launch_.name, " has called Worker::Connect() before (",
      launch_.launcher,
      " gave this process the rank): if that was another process that has ended, start all ranks "
      "anew"));
}

Result<std::vector<environment::Seat>> LaunchedWorker::AwaitSeats(const Options& options,
                                                                  const std::string& advice) {
  const MonoTime deadline = MonoNow() + options.connect_timeout;
  const MonoTime tell_at = MonoNow() + options.silence;
  std::vector<environment::Seat> seats;
  bool told = false;
  for (int rank = 0; rank < launch_.world_size; ++rank) {
    const std::string key = absl::StrCat(kSeat, rank);
    const auto get_until = [&](MonoTime until) {
      return Get(key, absl::ToChronoNanoseconds(until - MonoNow()));
    };
    Result<std::string> seat = get_until(told ? deadline : std::min(tell_at, deadline));
    if (!seat.ok() && !told && MonoNow() < deadline) {
      told = true;
      Tell(absl::StrCat("rank 0 waits at ", server_->endpoint(), " for rank ", rank, " of ",
                        launch_.world_size, " to call Worker::Connect(), until ",
                        Readable(options.connect_timeout), " have passed", Refused()));
      seat = get_until(deadline);
    }
    if (!seat.ok()) {
      return DeadlineExceededError(absl::StrCat(
          "rank ", rank, " of ", launch_.world_size, " has not called Worker::Connect() within ",
          Readable(options.connect_timeout), Refused(), advice));
    }
    ASSIGN_OR_RETURN(const TakenSeat taken, frames::ParseMessage<TakenSeat>(*seat));
    seats.push_back(taken.seat);
  }
  return seats;
}

void LaunchedWorker::SeatAll(const Options& options, const std::string& advice) {
  Seated seated;
  const Result<std::vector<environment::Seat>> seats = AwaitSeats(options, advice);
  Status status = seats.status();
  if (status.ok()) {
    Result<std::vector<environment::SeatPlace>> places = environment::ArrangeSeats(*seats);
    status = places.status();
    if (status.ok()) seated.places = *std::move(places);
  }
  seated.address = OwnAddress();
  seated.code = static_cast<absl::StatusCode>(status.code());
  seated.message = std::string(status.message());
  Set(kSeated, Written(seated)).IgnoreError();
}

Status LaunchedWorker::FindPlace(std::chrono::nanoseconds patience) {
  const Result<std::string> text =
      Get(kSeated, patience + absl::ToChronoNanoseconds(store::kCallMargin));
  if (text.status().code() == StatusCode::kDeadlineExceeded) {
    return DeadlineExceededError(absl::StrCat("rank 0 did not say within ", Readable(patience),
                                              " that all ranks are there"));
  }
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(const Seated seated, frames::ParseMessage<Seated>(*text));
  if (seated.code != absl::StatusCode::kOk) {
    return Status(static_cast<StatusCode>(seated.code), seated.message);
  }
  if (seated.places.size() != static_cast<size_t>(launch_.world_size)) {
    return InvalidArgumentError(
        absl::StrCat("rank 0 was told that there are ", seated.places.size(), " ranks, rank ",
                     launch_.rank, " that there are ", launch_.world_size, " (WORLD_SIZE)"));
  }
  const environment::SeatPlace& own = seated.places[launch_.rank];
  WorkerPlace at = place();
  at.local_rank = own.local_rank;
  at.local_world_size = own.local_world_size;
  at.node_rank = own.node_rank;
  at.nodes = own.nodes;
  // On rank 0's node its name may mean loopback.
  at.address = own.node_rank == 0 ? seated.address : OwnAddress();
  MoveTo(at);
  return OkStatus();
}

std::string LaunchedWorker::Refused() const {
  std::string why;
  const int rank = server_->refused_rank();
  if (rank >= 0) {
    why = absl::StrCat("; who called as rank ", rank,
                       " did not prove that it knows the secret (CADRE_SECRET_FILE), or encrypts "
                       "where this rank does not, or the other way round (CADRE_ENCRYPT)");
  }
  if (server_->lacked_descriptors()) {
    absl::StrAppend(&why,
                    "; rank 0 could open no more descriptors for those who came (`ulimit -n`)");
  }
  return why;
}

std::string LaunchedWorker::OwnAddress() const {
  const auto* file = std::get_if<environment::ThroughFile>(&launch_.meeting);
  if (file != nullptr) return file->address;
  // As the ranks of other nodes reach this one: the way that leads to rank 0 leads back. Rank 0
  // knows by which of its addresses they came.
  const std::string address = server_ == nullptr ? "" : server_->address_reached();
  return address.empty() ? local_address() : address;
}

// Rank 0 serves, and says where.
Result<std::unique_ptr<LaunchedWorker>> ConnectFirst(const Launch& launch, MeetingPlace& meeting,
                                                     const Options& options) {
  ASSIGN_OR_RETURN(Door door, meeting.Open());
  ASSIGN_OR_RETURN(
      std::unique_ptr<store::StoreServer> server,
      store::StoreServer::Start(std::move(door.listener), launch.world_size, door.key));
  auto worker =
      std::make_unique<LaunchedWorker>(launch, store::StoreAddress{server->endpoint(), door.key});
  const std::string endpoint = server->endpoint();
  worker->Serve(std::move(server), options.farewell_timeout);
  RETURN_IF_ERROR(worker->TakeSeat());
  RETURN_IF_ERROR(meeting.Announce(door, endpoint));
  worker->SeatAll(options, meeting.Advice());
  meeting.Close();
  return worker;
}

// Rank 0 may not be there yet, or what tells of it may be left of an earlier launch.
Result<std::unique_ptr<LaunchedWorker>> ConnectToFirst(const Launch& launch, MeetingPlace& meeting,
                                                       const Options& options) {
  const MonoTime deadline = MonoNow() + options.connect_timeout;
  const MonoTime tell_at = MonoNow() + options.silence;
  bool told = false;
  MonoTime refused_until = MonoTime::Never();
  absl::Duration pause = kFirstPause;
  while (true) {
    const Result<store::StoreAddress> at = meeting.Find();
    if (!at.ok() && at.status().code() != StatusCode::kNotFound) return at.status();
    Status status = at.status();
    if (at.ok()) {
      auto worker = std::make_unique<LaunchedWorker>(launch, *at);
      status = worker->TakeSeat();
      if (status.ok()) return worker;
    }
    const bool refused = status.code() == StatusCode::kPermissionDenied;
    if (!refused) refused_until = MonoTime::Never();
    if (refused && refused_until == MonoTime::Never()) {
      refused_until = MonoNow() + meeting.RefusalPatience();
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
    if (!told && MonoNow() >= tell_at) {
      told = true;
      Tell(absl::StrCat("rank ", launch.rank, " of ", launch.world_size,
                        " looks for rank 0, until ", Readable(options.connect_timeout),
                        " have passed: ", status.message(), meeting.Advice()));
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
  // A rank alone needs no port that another program could have.
  if (launch.world_size == 1)
    return MeetAtAddress({store::kLoopback, 0}, {RandomToken(), false}, true);
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
  RETURN_IF_ERROR(worker->FindPlace(options.connect_timeout));
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace cadre::launched
