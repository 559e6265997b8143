#include "worker_runtime/environment/mpi_environment.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cadre/status.h"

namespace cadre::environment {
namespace {

constexpr char kOtherwise[] = "put Cadre between: mpirun ... cadre run -- PROGRAM";

Result<int> NeededNumber(const GetVariable& get, const char* name) {
  ASSIGN_OR_RETURN(const std::optional<int> number, NumberOf(get, name));
  if (number.has_value()) return *number;
  return FailedPreconditionError(absl::StrCat(
      name, " is not set although OMPI_COMM_WORLD_RANK is: pass all of Open MPI's variables on"));
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

Result<Launch> ReadMpiEnvironment(const GetVariable& get) {
  Launch launch;
  launch.launcher = "mpirun";
  ASSIGN_OR_RETURN(launch.rank, NeededNumber(get, "OMPI_COMM_WORLD_RANK"));
  ASSIGN_OR_RETURN(launch.world_size, NeededNumber(get, "OMPI_COMM_WORLD_SIZE"));
  ASSIGN_OR_RETURN(launch.local_rank, NeededNumber(get, "OMPI_COMM_WORLD_LOCAL_RANK"));
  ASSIGN_OR_RETURN(launch.local_world_size, NeededNumber(get, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  const int local_rank = *launch.local_rank, local_world_size = *launch.local_world_size;
  if (launch.rank >= launch.world_size || local_rank >= local_world_size ||
      local_world_size > launch.world_size) {
    return InvalidArgumentError(absl::StrCat(
        "Open MPI's variables contradict each other: rank ", launch.rank, " of ", launch.world_size,
        ", ", local_rank, " of ", local_world_size, " on this node"));
  }
  launch.one_node = local_world_size == launch.world_size;
  const absl::string_view name = TextOf(get, "PMIX_NAMESPACE");
  if (name.empty()) {
    return FailedPreconditionError(absl::StrCat(
        "PMIX_NAMESPACE is not set, so this mpirun has no name by which its processes find each "
        "other: ",
        kOtherwise));
  }
  launch.name = FileName(name);
  ThroughFile meeting;
  meeting.name = launch.name;
  if (!*launch.one_node) {
    meeting.address = FirstAddress(TextOf(get, "OMPI_MCA_orte_local_daemon_uri"));
    if (meeting.address.empty()) {
      return FailedPreconditionError(absl::StrCat(
          "this mpirun does not say at which address its other nodes reach this one (Open MPI 4 "
          "does, in OMPI_MCA_orte_local_daemon_uri): ",
          kOtherwise));
    }
  }
  launch.meeting = std::move(meeting);
  return launch;
}

}  // namespace cadre::environment
