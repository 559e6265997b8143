// Jobs, their usage and stacks, and nodes as JSON, with the field names of proto/job.proto,
// proto/cluster.proto and their imports. 64-bit numbers are strings, as in Protobuf's JSON. Pure.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_STATUS_JSON_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_STATUS_JSON_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::web {

inline constexpr char kJsonType[] = "application/json; charset=utf-8";

inline constexpr char kEventsType[] = "text/event-stream; charset=utf-8";

// One event of a server-sent stream; newlines in `data` become blanks.
std::string ServerSentEvent(absl::string_view name, absl::string_view data);

// {"jobs": [...]}, without their nodes.
std::string JobsJson(std::vector<v1::JobStatus> jobs);
std::string JobJson(const v1::JobStatus& job);
std::string UsageJson(const v1::JobUsage& usage);
std::string StacksJson(const v1::GetStacksReply& stacks);
// {"nodes": [...]}.
std::string NodesJson(const std::vector<v1::ClusterNodeStatus>& nodes);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_STATUS_JSON_H_
