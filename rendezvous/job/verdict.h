// The verdict of a job that has ended: how it is made, shown and sent. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_VERDICT_H_
#define CADRE_RENDEZVOUS_JOB_VERDICT_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/job/volatile_state.h"
#include "rendezvous/state/state.h"

namespace cadre::job {

// Returns the verdict of a job that ends now; it is saved with the record JobEnded.
v1::Verdict MakeVerdict(const std::string& name, const state::Job& job, v1::JobPhase outcome,
                        int exit_status, absl::string_view message,
                        const std::optional<v1::Failure>& root_cause);

// Returns "ended (failed): WHY"; a cancelled job may have no reason.
std::string EndText(const v1::Verdict& verdict);

// Returns what the nodes of an ended job are sent: its verdict and its timeline.
v1::ServerMessage FinishedMessage(const std::string& name, const JobView& view);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_VERDICT_H_
