// The unary calls (Store, Control) between gRPC and the core thread.
#ifndef CADRE_RENDEZVOUS_SERVICE_CALLS_H_
#define CADRE_RENDEZVOUS_SERVICE_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/status.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/service/core_thread.h"

namespace cadre {

// Each reactor deletes itself when gRPC is done with it. Request and reply belong to gRPC and live
// as long as the reactor.

// What the core answers, whatever its code, is the reply of a call with status OK: a
// compare-and-set that found another value returns that value.
grpc::ServerUnaryReactor* ServeStoreCall(std::shared_ptr<CoreThread> core,
                                         const v1::StoreRequest& request, v1::StoreReply* reply);

grpc::ServerUnaryReactor* ServeListJobs(CoreThread& core, v1::ListJobsReply* reply);
grpc::ServerUnaryReactor* ServeGetJob(CoreThread& core, const v1::GetJobRequest& request,
                                      v1::JobStatus* reply);
grpc::ServerUnaryReactor* ServeCancelJob(CoreThread& core, const v1::CancelJobRequest& request,
                                         v1::JobStatus* reply);

grpc::ServerUnaryReactor* ServeSubmitJob(CoreThread& core, const v1::SubmitJobRequest& request,
                                         v1::JobStatus* reply);
grpc::ServerUnaryReactor* ServeListNodes(CoreThread& core, v1::ListNodesReply* reply);
grpc::ServerUnaryReactor* ServeDrainNode(CoreThread& core, const v1::DrainNodeRequest& request,
                                         v1::ListNodesReply* reply);
grpc::ServerUnaryReactor* ServeReadLog(CoreThread& core, const v1::ReadLogRequest& request,
                                       v1::ReadLogReply* reply);

grpc::ServerUnaryReactor* RefuseCall(const absl::Status& status);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_SERVICE_CALLS_H_
