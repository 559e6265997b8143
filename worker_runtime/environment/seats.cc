#include "worker_runtime/environment/seats.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/status.h"

namespace cadre::environment {
namespace {

Status Spread(size_t rank, size_t first) {
  return InvalidArgumentError(absl::StrCat(
      "the ranks are spread so that rank ", rank, " does not sit beside rank ", first,
      " on its node; those of one node must follow each other (mpirun: --map-by slot; srun: "
      "--distribution=block), or put Cadre between: ... cadre run -- PROGRAM"));
}

Status CheckAgreement(const std::vector<Seat>& seats) {
  const bool knows = seats[0].local_rank >= 0;
  for (size_t rank = 0; rank < seats.size(); ++rank) {
    if (seats[rank].world_size != static_cast<int32_t>(seats.size())) {
      return InvalidArgumentError(absl::StrCat("rank 0 was told that there are ", seats.size(),
                                               " ranks, rank ", rank, " that there are ",
                                               seats[rank].world_size, " (WORLD_SIZE)"));
    }
    if ((seats[rank].local_rank >= 0) != knows) {
      return InvalidArgumentError(
          absl::StrCat("rank ", knows ? 0 : rank, " was told its local rank, but not rank ",
                       knows ? rank : 0, ": set LOCAL_RANK for all or none"));
    }
  }
  return OkStatus();
}

// One node's, from `first` to before `end`.
Status CheckNode(const std::vector<Seat>& seats, size_t first, size_t end) {
  for (size_t rank = first; rank < end; ++rank) {
    const Seat& seat = seats[rank];
    if (seat.local_rank >= 0 && seat.local_rank != static_cast<int32_t>(rank - first)) {
      return Spread(rank, first);
    }
    const auto size = static_cast<int32_t>(end - first);
    if (seat.local_world_size < 0 || seat.local_world_size == size) continue;
    if (seat.local_world_size > size && end < seats.size()) return Spread(end, first);
    return InvalidArgumentError(absl::StrCat("rank ", rank, " was told that its node has ",
                                             seat.local_world_size, " ranks, but it has ", size,
                                             ", those from ", first,
                                             " on: ranks of one node must follow each other "
                                             "(mpirun: --map-by slot), or put Cadre between: ... "
                                             "cadre run -- PROGRAM"));
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<SeatPlace>> ArrangeSeats(const std::vector<Seat>& seats) {
  if (seats.empty()) return InvalidArgumentError("a world without ranks");
  RETURN_IF_ERROR(CheckAgreement(seats));
  std::vector<SeatPlace> places(seats.size());
  std::set<std::string> machines;
  int32_t nodes = 0;
  for (size_t first = 0, end = 0; first < seats.size(); first = end, ++nodes) {
    const bool knows = seats[first].local_rank >= 0;
    for (end = first + 1; end < seats.size(); ++end) {
      if (knows ? seats[end].local_rank == 0 : seats[end].machine != seats[first].machine) break;
    }
    if (!knows && !machines.insert(seats[first].machine).second) {
      size_t before = 0;
      while (seats[before].machine != seats[first].machine) ++before;
      return Spread(first, before);
    }
    RETURN_IF_ERROR(CheckNode(seats, first, end));
    for (size_t rank = first; rank < end; ++rank) {
      places[rank].local_rank = static_cast<int32_t>(rank - first);
      places[rank].local_world_size = static_cast<int32_t>(end - first);
      places[rank].node_rank = nodes;
    }
  }
  for (SeatPlace& place : places) place.nodes = nodes;
  return places;
}

}  // namespace cadre::environment
