#include "rendezvous/web/dashboard/status_json.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace cadre::web {
namespace {

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  // It fails only for the well-known type Any, which our messages do not have.
  google::protobuf::util::MessageToJsonString(message, &json, options).ok();
  return json;
}

}  // namespace

std::string ServerSentEvent(absl::string_view name, absl::string_view data) {
  // A newline would end the field.
  return absl::StrCat("event: ", name,
                      "\ndata: ", absl::StrReplaceAll(data, {{"\n", " "}, {"\r", " "}}), "\n\n");
}

std::string JobsJson(std::vector<v1::JobStatus> jobs) {
  v1::ListJobsReply reply;
  for (v1::JobStatus& job : jobs) {
    job.clear_nodes();
    *reply.add_jobs() = std::move(job);
  }
  return Json(reply);
}

std::string JobJson(const v1::JobStatus& job) { return Json(job); }

std::string UsageJson(const v1::JobUsage& usage) { return Json(usage); }

std::string StacksJson(const v1::GetStacksReply& stacks) { return Json(stacks); }

std::string NodesJson(const std::vector<v1::ClusterNodeStatus>& nodes) {
  v1::ListNodesReply reply;
  for (const v1::ClusterNodeStatus& node : nodes) *reply.add_nodes() = node;
  return Json(reply);
}

}  // namespace cadre::web
