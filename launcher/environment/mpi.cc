// Started by mpirun: Open MPI's variables, or PMI's as Hydra and its relatives set them. One
// launcher per node; all on one machine is taken for a rehearsal of several nodes.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/environment/identity.h"

namespace cadre {
namespace {

struct Names {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_size;
  const char* job;
};

constexpr Names kKnown[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_JOBID"},
};

}  // namespace

absl::StatusOr<std::optional<Identity>> ReadMpi(const EnvironmentMap& environment) {
  for (const Names& names : kKnown) {
    ASSIGN_OR_RETURN(const std::optional<uint32_t> rank, NumberIn(environment, names.rank));
    ASSIGN_OR_RETURN(const std::optional<uint32_t> size, NumberIn(environment, names.size));
    if (!rank.has_value() || !size.has_value()) continue;
    ASSIGN_OR_RETURN(const std::optional<uint32_t> local, NumberIn(environment, names.local_size));
    Identity identity;
    identity.source = names.source;
    identity.node_rank = static_cast<int>(*rank);
    identity.nodes = *size;
    const std::string job = TextIn(environment, names.job);
    if (local.has_value() && *local == *size) {
      identity.endpoint_host = "127.0.0.1";
      identity.endpoint_port = PortFor(absl::StrCat("mpi ", job));
      identity.node_name = absl::StrCat("node", *rank);
    } else if (local.value_or(1) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(names.source, " runs ", *local,
                       " processes on this node, but one launcher per node is "
                       "needed: mpirun --map-by ppr:1:node cadre run --nproc-per-node N ..."));
    }
    return std::optional<Identity>(std::move(identity));
  }
  return std::optional<Identity>();
}

}  // namespace cadre
