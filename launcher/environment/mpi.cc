// Started by mpirun: Open MPI's variables, or PMI's as Hydra and its relatives set them. However
// many processes it starts on a node, one of them works.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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
  const char* job;
};

constexpr Names kOpenMpi = {"Open MPI",
                            "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                            "PMIX_NAMESPACE"};
constexpr Names kPmi = {"PMI",      "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
                        "PMI_JOBID"};

struct Counts {
  uint32_t rank = 0;
  uint32_t size = 1;
  uint32_t local_rank = 0;
  uint32_t local_size = 1;
};

// Nothing where the rank or the size is not set.
absl::StatusOr<std::optional<Counts>> ReadCounts(const EnvironmentMap& environment,
                                                 const Names& names) {
  ASSIGN_OR_RETURN(const std::optional<uint32_t> rank, NumberIn(environment, names.rank));
  ASSIGN_OR_RETURN(const std::optional<uint32_t> size, NumberIn(environment, names.size));
  if (!rank.has_value() || !size.has_value()) return std::optional<Counts>();
  ASSIGN_OR_RETURN(const std::optional<uint32_t> local_rank,
                   NumberIn(environment, names.local_rank));
  ASSIGN_OR_RETURN(const std::optional<uint32_t> local_size,
                   NumberIn(environment, names.local_size));
  const Counts counts = {*rank, *size, local_rank.value_or(0), local_size.value_or(1)};
  if (counts.rank < counts.size && counts.local_rank < counts.local_size &&
      counts.local_size <= counts.size) {
    return std::optional<Counts>(counts);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      names.source, "'s variables contradict each other: rank ", counts.rank, " of ", counts.size,
      ", ", counts.local_rank, " of ", counts.local_size, " on this node"));
}

absl::StatusOr<std::optional<Identity>> Read(const EnvironmentMap& environment, const Names& names,
                                             std::optional<uint32_t> nodes) {
  ASSIGN_OR_RETURN(const std::optional<Counts> counts, ReadCounts(environment, names));
  if (!counts.has_value()) return std::optional<Identity>();
  Identity identity;
  identity.source = names.source;
  identity.local_task = counts->local_rank;
  identity.local_tasks = counts->local_size;
  const bool even = counts->size % counts->local_size == 0;
  identity.nodes = nodes.value_or(even ? counts->size / counts->local_size : 0);
  // Only where ranks go node by node do they say which node this is.
  if (counts->size == identity.nodes * counts->local_size &&
      counts->rank % counts->local_size == counts->local_rank) {
    identity.node_rank = static_cast<int>(counts->rank / counts->local_size);
  }
  const std::string job = TextIn(environment, names.job);
  if (!job.empty()) identity.launch = absl::StrCat("mpi-", job);
  return std::optional<Identity>(std::move(identity));
}

// "425263104.0;tcp://10.77.0.1,10.1.0.1:37987;tcp6://..." to "10.77.0.1".
std::string HostOf(absl::string_view uri) {
  constexpr absl::string_view kScheme = "tcp://";
  const size_t at = uri.find(kScheme);
  if (at == uri.npos) return "";
  uri.remove_prefix(at + kScheme.size());
  return std::string(uri.substr(0, uri.find_first_of(",:;")));
}

}  // namespace

absl::StatusOr<std::optional<Identity>> ReadOpenMpi(const EnvironmentMap& environment) {
  ASSIGN_OR_RETURN(const std::optional<uint32_t> nodes,
                   NumberIn(environment, "OMPI_MCA_orte_num_nodes"));
  ASSIGN_OR_RETURN(std::optional<Identity> identity, Read(environment, kOpenMpi, nodes));
  if (!identity.has_value()) return identity;
  identity->node_name = TextIn(environment, "PMIX_HOSTNAME");
  // The node where mpirun runs serves: its address is the one that every node is told.
  const std::string mpirun = TextIn(environment, "OMPI_MCA_orte_hnp_uri");
  identity->endpoint_host = HostOf(mpirun);
  identity->endpoint_port = PortFor(identity->launch);
  identity->serves = mpirun == TextIn(environment, "OMPI_MCA_orte_local_daemon_uri");
  return identity;
}

absl::StatusOr<std::optional<Identity>> ReadPmi(const EnvironmentMap& environment) {
  return Read(environment, kPmi, std::nullopt);
}

}  // namespace cadre::launcher
