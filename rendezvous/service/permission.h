// The one table of who may do what, by the token that a call carries. Pure; thread safe.
//
//   administrator   everything
//   user            submits jobs as that user, cancels own ones, reads their logs and stacks, uses
//                   their names again, sees what runs; begins jobs with own nodes, which are its
//                   own
//   reader          sees what runs, and changes nothing
//   part            the stream of that part of that job
#ifndef CADRE_RENDEZVOUS_SERVICE_PERMISSION_H_
#define CADRE_RENDEZVOUS_SERVICE_PERMISSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/bearer_token.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/rendezvous.pb.h"

namespace cadre::service {

// All: OK, or PERMISSION_DENIED with whose token it takes.

// With the first message of a node's stream.
absl::Status MayOpenStream(const Bearer& bearer, const v1::NodeMessage& first);
// Past the streams of a job's nodes.
absl::Status MayCallStore(const Bearer& bearer);
// To see jobs, and the cluster's nodes.
absl::Status MayLook(const Bearer& bearer);
absl::Status MaySubmit(const Bearer& bearer, const v1::SubmitJobRequest& request);
// Cancel a job, read its logs and stacks, submit another one under its name. `owner`: whose it is;
// empty: the administrators'.
absl::Status MayUseJob(const Bearer& bearer, absl::string_view owner);
absl::Status MayDrain(const Bearer& bearer);

// As MayUseJob names the owner.
const std::string& OwnerOf(const v1::JobStatus& status);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_PERMISSION_H_
