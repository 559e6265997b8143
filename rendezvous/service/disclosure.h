// The one place that knows who may see what of what the server says: every answer to a call, every
// message down a stream and everything on the dashboard passes here last. Whether a call may be
// made at all permission.h says, before.
//
// Users see all jobs and nodes: whose they are, where they run, how far they are, how they end.
// What another user's program wrote, and what tells of its command, files and environment, they do
// not. A message for a stranger is built from the fields that are listed here, so that a new field
// is hidden until somebody decides otherwise. An answer of a kind that has no ShowTo does not
// compile.
//
// Pure; thread safe.
#ifndef CADRE_RENDEZVOUS_SERVICE_DISCLOSURE_H_
#define CADRE_RENDEZVOUS_SERVICE_DISCLOSURE_H_

#include <string>
#include <vector>

#include "base/bearer_token.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"

namespace cadre::service {

// Stands where words of another user's job would.
inline constexpr char kNotShown[] = "(what it says is its owner's)";

// Leave of the answer what its receiver may see. Of logs, stacks and stores, which say nothing of
// their job's owner, that is all for those who may ask for some, and nothing for others.
void ShowTo(const Bearer& bearer, v1::JobStatus* status);
void ShowTo(const Bearer& bearer, std::vector<v1::JobStatus>* jobs);
void ShowTo(const Bearer& bearer, v1::ListJobsReply* jobs);
// For the job's owner and those who watch.
void ShowTo(const Bearer& bearer, v1::JobUsage* usage);
void ShowTo(const Bearer& bearer, std::vector<v1::ClusterNodeStatus>* nodes);
void ShowTo(const Bearer& bearer, v1::ListNodesReply* nodes);
void ShowTo(const Bearer& bearer, v1::ReadLogReply* log);
void ShowTo(const Bearer& bearer, v1::GetStacksReply* stacks);
void ShowTo(const Bearer& bearer, v1::StoreReply* reply);

// What a stream was opened for, with its first message.
struct StreamPurpose {
  // It is an agent's, else a node's of `job`.
  bool agent = false;
  std::string job;
};
// Whether the message may go down this stream: of its own job alone, and orders to agents alone.
bool MayHear(const Bearer& bearer, const StreamPurpose& stream, const v1::ServerMessage& message);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_DISCLOSURE_H_
