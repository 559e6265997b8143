// What is kept of a job that has ended: one v1::AccountedJob, made from the server's state. Pure.
//
// The times of a job are defined here, and for users in docs/accounting.md:
//
//   used     from the placement of an allocation until its launcher has ended: that time is held,
//            and that time multiplied by the CPUs and by the GPUs of the allocation. Nothing else
//            is counted, so that the sums over jobs and over nodes are the same. A step uses a
//            share of its batch job's allocations: its times are kept with it and left out of sums.
//            A job that nodes brought (`cadre run`) has no allocations and uses nothing of the
//            cluster.
//   lost     of the job's time that which is between the report of a generation's first failure and
//            the moment at which all workers of a later generation ran, or failed in their turn.
//            What it spent in the queue in between, without nodes, is left out. The cause is that
//            of the first failure. It is multiplied by the nodes of the failed generation, and by
//            the mean CPUs and GPUs that the job had on a node.
//   wasted   of a job that FAILED, everything that it used and that was not lost before its last
//            failure. The cause is that of the verdict.
//
// A job's lost and wasted times together are at most what it used. What is left was useful, or
// spent on starting and ending.
#ifndef CADRE_RENDEZVOUS_ACCOUNTING_ROWS_H_
#define CADRE_RENDEZVOUS_ACCOUNTING_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/accounting.pb.h"
#include "proto/record.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::accounting {

// What a row of a job cannot have from the job.
struct RowOrigin {
  uint64_t server_id = 0;
  // The wall clock at MonoTime 0, in milliseconds since the Unix epoch.
  int64_t unix_ms_at_zero = 0;
};

// What the job has used so far, by node; of allocations that it still has, until it ended. `job`
// must have ended.
std::vector<v1::NodeUse> UsesOf(const state::Job& job, const state::Cluster& cluster);

// The lost and the wasted time of a job that has ended, and that has used `used` of all nodes
// together (its `node` is not read).
std::vector<v1::LostTime> LostOf(const state::Job& job, const v1::NodeUse& used);

// The row of a job that has ended.
v1::AccountedJob RowOf(const state::Job& job, const state::Cluster& cluster,
                       const RowOrigin& origin);

// For whoever applies records to a state: the name of the job that the record may end, or of one of
// whose allocations it ends; empty if there is none. To be called before the record is applied.
std::string JobChangedBy(const v1::Record& record, const state::State& state);
// After it was applied: the row of that job, if the record has ended it, or has ended the last
// allocation of a job that had ended.
std::optional<v1::AccountedJob> RowAfter(const v1::Record& record, const std::string& job,
                                         const state::State& state, const RowOrigin& origin);

// The rows of all jobs in the state that have ended, in the order in which they did.
std::vector<v1::AccountedJob> RowsOf(const state::State& state, const RowOrigin& origin);

// A cause in one word, as specs have it: "node_lost"; "unknown" if it is not known.
std::string CauseWord(v1::FailureCause cause);

}  // namespace cadre::accounting

#endif  // CADRE_RENDEZVOUS_ACCOUNTING_ROWS_H_
