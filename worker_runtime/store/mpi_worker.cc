#include "worker_runtime/store/mpi_worker.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "base/user_directory.h"
#include "cadre/status.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/store/call_stream.h"
#include "worker_runtime/store/connect_socket.h"
#include "worker_runtime/store/store_server.h"
#include "worker_runtime/store/store_worker.h"

namespace cadre::store {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

// Keys of our own among the user's.
constexpr char kSeat[] = "cadre/mpi/seat/";
constexpr char kSeats[] = "cadre/mpi/seats";
constexpr char kLeft[] = "cadre/mpi/left";
constexpr char kAllLeft[] = "cadre/mpi/all_left";
// What kSeats begins with where not all have come.
constexpr char kMissing[] = "missing: ";

// Where rank 0's store is, and the token that it wants.
struct Meeting {
  std::string endpoint;
  std::string token;
};

Result<std::string> MeetingFile(const environment::MpiEnvironment& environment) {
  const absl::StatusOr<std::string> directory =
      environment.one_node() ? RuntimeDirectory() : HomeDirectory();
  if (directory.ok()) return absl::StrCat(*directory, "/", environment.launch);
  return FailedPreconditionError(absl::StrCat(
      "mpirun's processes find each other through a directory of yours, but ",
      directory.status().message(), "; or put Cadre between: mpirun ... cadre run -- PROGRAM"));
}

Result<Meeting> ReadMeeting(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string line, ReadTokenFile(path));
  const std::pair<std::string, std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
  return Meeting{words.first, words.second};
}

class MpiWorker : public StoreWorker {
 public:
  MpiWorker(const Meeting& meeting, const WorkerPlace& place)
      : endpoint_(meeting.endpoint),
        calls_([endpoint = meeting.endpoint] { return ConnectToAddress(endpoint); },
               meeting.token) {
    MoveTo(place);
  }

  // Says goodbye; rank 0 waits for all others, up to `farewell`, because the store goes with it.
  ~MpiWorker() override {
    if (!seated_) return;
    const int others = place().world_size - 1;
    if (place().rank != 0) {
      const Result<int64_t> left = Add(kLeft, 1);
      if (left.ok() && *left == others) Set(kAllLeft, "").IgnoreError();
    } else if (others > 0) {
      Get(kAllLeft, farewell_).IgnoreError();
    }
  }

  // Tells the others where this rank is. Everything but OK: it is not known to them.
  Status TakeSeat() {
    // Only one process can be this rank.
    const WorkerPlace& at = place();
    Status status =
        CompareAndSet(absl::StrCat(kSeat, at.rank), "",
                      absl::StrCat(at.local_rank, " ", at.local_world_size, " ", RandomToken()))
            .status();
    seated_ = status.ok();
    if (status.code() != StatusCode::kFailedPrecondition) return status;
    return FailedPreconditionError(
        absl::StrCat("another process is rank ", at.rank, " of this mpirun already"));
  }

  // Of rank 0: waits for all, and tells everybody.
  void GatherSeats(MonoTime deadline) {
    std::string seats;
    for (int rank = 0; rank < place().world_size; ++rank) {
      const Result<std::string> seat =
          Get(absl::StrCat(kSeat, rank), absl::ToChronoNanoseconds(deadline - MonoNow()));
      if (!seat.ok()) {
        seats = absl::StrCat(kMissing, "rank ", rank, " of ", place().world_size);
        break;
      }
      const std::vector<absl::string_view> words = absl::StrSplit(*seat, ' ');
      absl::StrAppend(&seats, rank == 0 ? "" : ";", words[0], " ", words[1]);
    }
    Set(kSeats, seats).IgnoreError();
  }

  // Waits until all ranks are there.
  Status FindNode(std::chrono::nanoseconds patience) {
    ASSIGN_OR_RETURN(const std::string text,
                     Get(kSeats, patience + absl::ToChronoNanoseconds(kCallMargin)));
    absl::string_view missing = text;
    if (absl::ConsumePrefix(&missing, kMissing)) {
      return DeadlineExceededError(absl::StrCat(missing,
                                                " has not called Worker::Connect() within ",
                                                absl::FormatDuration(absl::FromChrono(patience))));
    }
    std::vector<environment::MpiSeat> seats;
    for (const absl::string_view entry : absl::StrSplit(text, ';')) {
      const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(entry, ' ');
      environment::MpiSeat& seat = seats.emplace_back();
      if (!absl::SimpleAtoi(words.first, &seat.local_rank) ||
          !absl::SimpleAtoi(words.second, &seat.local_world_size)) {
        return InternalError(absl::StrCat("no place of a rank: '", entry, "'"));
      }
    }
    ASSIGN_OR_RETURN(const environment::MpiNode node,
                     environment::FindMpiNode(seats, place().rank));
    WorkerPlace at = place();
    at.node_rank = node.node_rank;
    at.nodes = node.nodes;
    MoveTo(at);
    return OkStatus();
  }

  // Of rank 0.
  void Serve(std::unique_ptr<StoreServer> server, std::chrono::nanoseconds farewell) {
    server_ = std::move(server);
    farewell_ = farewell;
  }

  // Nobody shows it: there is no launcher.
  void ReportProgress(int64_t, double, double) override {}

 private:
  Result<keyspace::Reply> Send(keyspace::Request request) override {
    const absl::Duration limit = absl::Milliseconds(request.wait_ms) + kCallMargin;
    Result<rpc::WorkerReply> reply = calls_.Call(CallOf(std::move(request)), limit);
    if (reply.ok()) return ReplyOf(*std::move(reply));
    if (reply.status().code() == StatusCode::kUnavailable) {
      return UnavailableError(absl::StrCat("rank 0, which serves the store at ", endpoint_,
                                           ", cannot be reached: ", reply.status().message()));
    }
    if (reply.status().code() != StatusCode::kDeadlineExceeded) return reply.status();
    return DeadlineExceededError(absl::StrCat("rank 0, which serves the store at ", endpoint_,
                                              ", did not answer within ",
                                              absl::FormatDuration(limit)));
  }

  const std::string endpoint_;
  std::unique_ptr<StoreServer> server_;
  CallStream calls_;
  std::chrono::nanoseconds farewell_{};
  bool seated_ = false;
};

WorkerPlace PlaceOf(const environment::MpiEnvironment& environment) {
  WorkerPlace place;
  place.job = environment.launch;
  place.generation = 1;
  place.rank = environment.rank;
  place.world_size = environment.world_size;
  place.local_rank = environment.local_rank;
  place.local_world_size = environment.local_world_size;
  place.address = environment.address;
  return place;
}

// Rank 0 serves, and says where.
Result<std::unique_ptr<MpiWorker>> ConnectFirst(const environment::MpiEnvironment& environment,
                                                const std::string& path,
                                                const MpiWorkerOptions& options) {
  Meeting meeting;
  meeting.token = RandomToken();
  ASSIGN_OR_RETURN(std::unique_ptr<StoreServer> server,
                   StoreServer::Start(environment.address, environment.world_size, meeting.token));
  meeting.endpoint = server->endpoint();
  auto worker = std::make_unique<MpiWorker>(meeting, PlaceOf(environment));
  worker->Serve(std::move(server), options.farewell_timeout);
  RETURN_IF_ERROR(worker->TakeSeat());
  const MonoTime deadline = MonoNow() + options.connect_timeout;
  RETURN_IF_ERROR(WriteTokenFile(path, absl::StrCat(meeting.endpoint, " ", meeting.token)));
  worker->GatherSeats(deadline);
  unlink(path.c_str());
  return worker;
}

// The file may not be there yet, or be left of an earlier mpirun of the same number.
Result<std::unique_ptr<MpiWorker>> ConnectToFirst(const environment::MpiEnvironment& environment,
                                                  const std::string& path,
                                                  const MpiWorkerOptions& options) {
  const MonoTime deadline = MonoNow() + options.connect_timeout;
  absl::Duration pause = kFirstPause;
  while (true) {
    const Result<Meeting> meeting = ReadMeeting(path);
    Status status = meeting.status();
    if (meeting.ok()) {
      auto worker = std::make_unique<MpiWorker>(*meeting, PlaceOf(environment));
      status = worker->TakeSeat();
      if (status.ok()) return worker;
    }
    const bool may_come = status.code() == StatusCode::kNotFound ||
                          status.code() == StatusCode::kUnavailable ||
                          status.code() == StatusCode::kUnauthenticated ||
                          status.code() == StatusCode::kDeadlineExceeded;
    if (!may_come) return status;
    if (MonoNow() + pause > deadline) {
      return DeadlineExceededError(absl::StrCat(
          "rank ", environment.rank, " did not find rank 0 within ",
          absl::FormatDuration(absl::FromChrono(options.connect_timeout)), ": ", status.message(),
          environment.one_node() ? ""
                                 : "; where home directories are not shared, put Cadre between: "
                                   "mpirun ... cadre run -- PROGRAM"));
    }
    absl::SleepFor(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace

Result<std::unique_ptr<Worker>> ConnectUnderMpi(const environment::MpiEnvironment& environment,
                                                const MpiWorkerOptions& options) {
  ASSIGN_OR_RETURN(const std::string path, MeetingFile(environment));
  ASSIGN_OR_RETURN(std::unique_ptr<MpiWorker> worker,
                   environment.rank == 0 ? ConnectFirst(environment, path, options)
                                         : ConnectToFirst(environment, path, options));
  RETURN_IF_ERROR(worker->FindNode(options.connect_timeout));
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace cadre::store
