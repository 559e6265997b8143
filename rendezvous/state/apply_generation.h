// What happens to a job's current generation and its workers. For apply_job.cc alone. Pure.
#ifndef CADRE_RENDEZVOUS_STATE_APPLY_GENERATION_H_
#define CADRE_RENDEZVOUS_STATE_APPLY_GENERATION_H_

#include <string>

#include "proto/record.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::state {

void FormGeneration(const v1::GenerationFormed& record, Job* job);
void RunWorker(const v1::WorkerRan& record, Job* job);
void TakeImports(const v1::NodeImported& record, Job* job);
void EndWorker(const v1::WorkerEnded& record, Job* job);
void OrderStop(const v1::StopOrdered& record, Job* job);

// The node is gone with its workers, or has none left; nothing where it is no member that counts.
void LoseMember(const std::string& node, Generation* generation);
void ClearMember(const std::string& node, Generation* generation);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_APPLY_GENERATION_H_
