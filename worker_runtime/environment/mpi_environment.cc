#include "worker_runtime/environment/mpi_environment.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cadre/status.h"

namespace cadre::environment {
namespace {

constexpr char kOtherwise[] = "put Cadre between: mpirun ... cadre run -- PROGRAM";

absl::string_view TextOf(const GetVariable& get, const char* name) {
  const char* const text = get(name);
  return text == nullptr ? "" : text;
}

Result<int> NumberOf(const GetVariable& get, const char* name) {
  const absl::string_view text = TextOf(get, name);
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  if (text.empty()) {
    return FailedPreconditionError(absl::StrCat(
        name, " is not set although OMPI_COMM_WORLD_RANK is: pass all of Open MPI's variables on"));
  }
  return InvalidArgumentError(
      absl::StrCat(name, " is \"", text, "\", but must be a number that is not negative"));
}

// "425263104.0;tcp://10.77.0.1,10.1.0.1:37987;tcp6://..." to "10.77.0.1".
std::string FirstAddress(absl::string_view uri) {
  constexpr absl::string_view kScheme = "tcp://";
  const size_t at = uri.find(kScheme);
  if (at == uri.npos) return "";
  uri.remove_prefix(at + kScheme.size());
  return std::string(uri.substr(0, uri.find_first_of(",:;")));
}

std::string FileName(absl::string_view text) {
  std::string name(text.substr(0, 128));
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains("-_.@", c)) c = '_';
  }
  return absl::StrCat("mpi-", name);
}

}  // namespace

bool StartedByMpi(const GetVariable& get) { return !TextOf(get, "OMPI_COMM_WORLD_RANK").empty(); }

Result<MpiEnvironment> ReadMpiEnvironment(const GetVariable& get) {
  MpiEnvironment mpi;
  ASSIGN_OR_RETURN(mpi.rank, NumberOf(get, "OMPI_COMM_WORLD_RANK"));
  ASSIGN_OR_RETURN(mpi.world_size, NumberOf(get, "OMPI_COMM_WORLD_SIZE"));
  ASSIGN_OR_RETURN(mpi.local_rank, NumberOf(get, "OMPI_COMM_WORLD_LOCAL_RANK"));
  ASSIGN_OR_RETURN(mpi.local_world_size, NumberOf(get, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  if (mpi.rank >= mpi.world_size || mpi.local_rank >= mpi.local_world_size ||
      mpi.local_world_size > mpi.world_size) {
    return InvalidArgumentError(absl::StrCat("Open MPI's variables contradict each other: rank ",
                                             mpi.rank, " of ", mpi.world_size, ", ", mpi.local_rank,
                                             " of ", mpi.local_world_size, " on this node"));
  }
  if (mpi.world_size > kMaxMpiRanks) {
    return FailedPreconditionError(absl::StrCat("mpirun started ", mpi.world_size,
                                                " processes; without Cadre's launcher at "
                                                "most ",
                                                kMaxMpiRanks, " find each other: ", kOtherwise));
  }
  const absl::string_view launch = TextOf(get, "PMIX_NAMESPACE");
  if (launch.empty()) {
    return FailedPreconditionError(absl::StrCat(
        "PMIX_NAMESPACE is not set, so this mpirun has no name by which its processes find each "
        "other: ",
        kOtherwise));
  }
  mpi.launch = FileName(launch);
  if (mpi.one_node()) return mpi;
  mpi.address = FirstAddress(TextOf(get, "OMPI_MCA_orte_local_daemon_uri"));
  if (!mpi.address.empty()) return mpi;
  return FailedPreconditionError(absl::StrCat(
      "this mpirun does not say at which address its other nodes reach this one (Open MPI 4 does, "
      "in OMPI_MCA_orte_local_daemon_uri): ",
      kOtherwise));
}

Result<MpiNode> FindMpiNode(const std::vector<MpiSeat>& seats, int rank) {
  MpiNode node;
  for (size_t first = 0; first < seats.size();) {
    const size_t size = seats[first].local_world_size;
    for (size_t i = 0; i < std::max<size_t>(size, 1); ++i) {
      if (size > 0 && first + i < seats.size() &&
          seats[first + i].local_rank == static_cast<int>(i) &&
          seats[first + i].local_world_size == static_cast<int>(size)) {
        continue;
      }
      return InvalidArgumentError(absl::StrCat(
          "mpirun spreads the ranks so that rank ", first + i, " does not sit beside rank ", first,
          " on its node; those of one node must follow each other (--map-by slot), or ",
          kOtherwise));
    }
    if (rank >= static_cast<int>(first)) node.node_rank = node.nodes;
    ++node.nodes;
    first += size;
  }
  return node;
}

}  // namespace cadre::environment
