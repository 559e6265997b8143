// The orders that start and stop a generation on its nodes (Assign, Stop), and what they say of the
// nodes: their ranks, their roles, and how what they run differs. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_ORDERS_H_
#define CADRE_RENDEZVOUS_JOB_ORDERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

// Returns the node rank in the current generation, or -1 for a spare.
int NodeRankOf(const state::Job& job, const std::string& node);

// Returns one line that says that the generation's nodes run different commands, or different
// versions of Python or PyTorch; empty if they do not as far as is known.
std::string DescribeNodeDifferences(const state::Job& job);

// Sets in `node` what a joining node's spec has of its own: role and command.
void SetRoleAndProgram(const v1::JobSpec& job, const v1::JobSpec& joining, saved::Node* node);

// The place of a node's workers among all of its role, indexed by node rank. Empty if all nodes
// have the same role.
struct RolePlace {
  uint32_t first_rank = 0;
  uint32_t world_size = 0;
};
std::vector<RolePlace> RolePlaces(const state::Job& job);
void SetRole(const std::vector<RolePlace>& places, uint32_t node_rank, v1::Assign* assign);

// Returns the orders that start and stop a generation on one of its nodes.
v1::Assign MakeAssign(const state::Job& job, uint32_t node_rank);
v1::Stop MakeStop(const state::Job& job, const std::string& node);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_ORDERS_H_
