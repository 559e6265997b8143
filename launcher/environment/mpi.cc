// Started by mpirun: Open MPI's variables, or PMI's as Hydra and its relatives set them. However
// many processes it starts on a node, one of them works.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "launcher/environment/identity.h"

namespace cadre::launcher {
namespace {

struct Names {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi = {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

// "MPI_LOCALNRANKS=2", "MPI_LOCALNRANKS is not set".
std::string Said(const EnvironmentMap& environment, const char* name) {
  const std::string value = TextIn(environment, name);
  return value.empty() ? absl::StrCat(name, " is not set") : absl::StrCat(name, "=", value);
}

absl::Status CheckCounts(const EnvironmentMap& environment, const Names& names,
                         const Identity& identity) {
  if (identity.task < identity.tasks && identity.local_task < identity.local_tasks &&
      identity.local_tasks <= identity.tasks) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      names.source, "'s variables contradict each other: rank ", identity.task, " of ",
      identity.tasks, ", ", identity.local_task, " of ", identity.local_tasks, " on this node (",
      Said(environment, names.rank), ", ", Said(environment, names.size), ", ",
      Said(environment, names.local_rank), ", ", Said(environment, names.local_size), ")"));
}

// Nothing where the rank or the size is not set. None of them says on how many nodes the ranks are,
// unless all are on this one: 4 ranks of which 2 are here may be on two nodes or on three.
absl::StatusOr<std::optional<Identity>> Read(const EnvironmentMap& environment,
                                             const Names& names) {
  ASSIGN_OR_RETURN(const std::optional<uint32_t> rank, NumberIn(environment, names.rank));
  ASSIGN_OR_RETURN(const std::optional<uint32_t> size, NumberIn(environment, names.size));
  if (!rank.has_value() || !size.has_value()) return std::optional<Identity>();
  ASSIGN_OR_RETURN(const std::optional<uint32_t> local_rank,
                   NumberIn(environment, names.local_rank));
  ASSIGN_OR_RETURN(const std::optional<uint32_t> local_size,
                   NumberIn(environment, names.local_size));
  Identity identity;
  identity.source = names.source;
  identity.task = *rank;
  identity.tasks = *size;
  identity.local_task = local_rank.value_or(0);
  identity.local_tasks = local_size.value_or(1);
  RETURN_IF_ERROR(CheckCounts(environment, names, identity));
  if (identity.tasks == identity.local_tasks) identity.nodes = 1;
  identity.unsaid = absl::StrCat(names.source, " does not say on how many nodes its ",
                                 identity.tasks, " ranks are (", Said(environment, names.size),
                                 ", ", Said(environment, names.local_size), ")");
  return std::optional<Identity>(std::move(identity));
}

}  // namespace

absl::StatusOr<std::optional<Identity>> ReadOpenMpi(const EnvironmentMap& environment) {
  ASSIGN_OR_RETURN(std::optional<Identity> identity, Read(environment, kOpenMpi));
  if (!identity.has_value()) return identity;
  identity->node_name = TextIn(environment, "PMIX_HOSTNAME");
  const std::string job = TextIn(environment, "PMIX_NAMESPACE");
  if (!job.empty()) identity->launch = MpiLaunchName(job);
  return identity;
}

absl::StatusOr<std::optional<Identity>> ReadPmi(const EnvironmentMap& environment) {
  ASSIGN_OR_RETURN(std::optional<Identity> identity, Read(environment, kPmi));
  if (!identity.has_value()) return identity;
  ASSIGN_OR_RETURN(const std::optional<uint32_t> pmi, NumberIn(environment, "PMI_FD"));
  if (pmi.has_value()) identity->pmi = static_cast<int>(*pmi);
  return identity;
}

std::string MpiLaunchName(absl::string_view job) {
  return absl::StrCat("mpi-", absl::StrReplaceAll(job, {{"/", "_"}}));
}

}  // namespace cadre::launcher
