// What the token of a caller allows, and which parts of the server's answers the caller may see.
// Pure; thread safe.
//
//   administrator   everything
//   user            submits jobs as that user, cancels own ones, reads their logs and stacks, uses
//                   their names again, sees what runs; starts jobs on its own nodes, which it
//                   then owns
//   reader          sees what runs, and changes nothing
//   part            the stream of that part of that job
//
// Users see all jobs and nodes: the owner, where a job runs, its progress, and how it ends. They do
// not see another user's program output, nor what tells of its command, files and environment. A
// job shown to another user is built from the fields listed in permissions.cc, so that a new field
// stays hidden until it is added.
#ifndef CADRE_RENDEZVOUS_SERVICE_PERMISSIONS_H_
#define CADRE_RENDEZVOUS_SERVICE_PERMISSIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/bearer_token.h"
#include "proto/accounting.pb.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"

namespace cadre::service {

// Whether the caller may make a call at all. These return OK, or PERMISSION_DENIED with the kind of
// token that is needed.

// `first` is the first message of a node's stream.
absl::Status MayOpenStream(const Bearer& bearer, const v1::NodeMessage& first);
// For store calls outside of the streams of a job's nodes.
absl::Status MayCallStore(const Bearer& bearer);
// To see jobs and the cluster's nodes.
absl::Status MayView(const Bearer& bearer);
absl::Status MaySubmit(const Bearer& bearer, const v1::SubmitJobRequest& request);
// To cancel a job, read its logs and stacks, or submit another one under its name. `owner` is the
// job's user; empty: the administrators.
absl::Status MayUseJob(const Bearer& bearer, absl::string_view owner);
absl::Status MayDrain(const Bearer& bearer);

// The owner, as for MayUseJob.
const std::string& OwnerOf(const v1::JobStatus& status);

// Replaces text of another user's job.
inline constexpr char kNotShown[] = "(shown to the job's owner only)";

// Remove from the answer what its receiver may not see. Every answer to a call, every message on a
// stream and everything on the dashboard passes through here last. An answer type without a ShowTo
// does not compile. Logs, stacks and stores do not name their
// job's owner: callers who may request some get all of the answer, and others nothing.
void ShowTo(const Bearer& bearer, v1::JobStatus* status);
void ShowTo(const Bearer& bearer, std::vector<v1::JobStatus>* jobs);
void ShowTo(const Bearer& bearer, v1::ListJobsReply* jobs);
// Shown only to the owner of the job and to holders of read-only tokens.
void ShowTo(const Bearer& bearer, v1::JobUsage* usage);
void ShowTo(const Bearer& bearer, std::vector<v1::ClusterNodeStatus>* nodes);
void ShowTo(const Bearer& bearer, v1::ListNodesReply* nodes);
// Jobs that have ended are shown as those of the state are.
void ShowTo(const Bearer& bearer, v1::HistoryReply* history);
void ShowTo(const Bearer& bearer, v1::UsageReply* usage);
void ShowTo(const Bearer& bearer, v1::ReadLogReply* log);
void ShowTo(const Bearer& bearer, v1::GetStacksReply* stacks);
void ShowTo(const Bearer& bearer, v1::StoreReply* reply);

// The purpose of a stream, which its first message tells.
struct StreamPurpose {
  // Whether it is an agent's stream; otherwise a node of `job` opened it.
  bool agent = false;
  std::string job;
};
// Whether the message may be sent on this stream: a job's stream carries messages of that job only,
// and only an agent's carries orders to agents.
bool MayReceive(const Bearer& bearer, const StreamPurpose& stream,
                const v1::ServerMessage& message);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_PERMISSIONS_H_
