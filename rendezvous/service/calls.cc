#include "rendezvous/service/calls.h"

#include <memory>
#include <utility>
#include <vector>

#include "rendezvous/service/permission.h"
#include "rendezvous/service/unary_call.h"

namespace cadre::service {
namespace {

v1::ListJobsReply ReplyOf(std::vector<v1::JobStatus> jobs) {
  v1::ListJobsReply reply;
  for (v1::JobStatus& job : jobs) *reply.add_jobs() = std::move(job);
  return reply;
}
v1::ListNodesReply ReplyOf(std::vector<v1::ClusterNodeStatus> nodes) {
  v1::ListNodesReply reply;
  for (v1::ClusterNodeStatus& node : nodes) *reply.add_nodes() = std::move(node);
  return reply;
}
template <typename Reply>
Reply ReplyOf(Reply reply) {
  return reply;
}

// Ends the call with what the core answers.
template <typename Answer, typename Call>
auto EndOf(const std::shared_ptr<Call>& call) {
  return [call](absl::StatusOr<Answer> answer) {
    if (!answer.ok()) return call->End(answer.status());
    call->End(ReplyOf(*std::move(answer)));
  };
}

// Listens for calls of one method of a service.
class Listener {
 public:
  Listener(CallThreads& threads, const Admission& admission)
      : threads_(threads), admission_(admission) {}

  template <typename Request, typename Reply, typename Ask, typename Serve>
  void Listen(const Ask& ask, const Serve& serve) {
    using Call = UnaryCall<Request, Reply>;
    Call::Serve(std::make_shared<const typename Call::Method>(
        typename Call::Method{threads_, admission_, ask, serve}));
  }

 private:
  CallThreads& threads_;
  const Admission& admission_;
};

// Asks gRPC for the next call of a method.
#define REQUEST_OF(service, Method)                                                \
  [&service](auto* context, auto* request, auto* writer, auto* queue, void* tag) { \
    service.Request##Method(context, request, writer, queue, queue, tag);          \
  }

// Ends the call where its caller may not make it.
template <typename Call>
bool Passes(const std::shared_ptr<Call>& call, const absl::Status& may) {
  if (!may.ok()) call->End(may);
  return may.ok();
}

host::OwnerCheck OwnerCheckOf(const Bearer& bearer) {
  return [bearer](absl::string_view owner) { return MayUseJob(bearer, owner); };
}

void ServeJobs(v1::Control::AsyncService& service, Listener& listener) {
  listener.Listen<v1::ListJobsRequest, v1::ListJobsReply>(
      REQUEST_OF(service, ListJobs), [](const Admitted& admitted, const auto& call) {
        if (!Passes(call, MayLook(admitted.bearer))) return;
        // The core has better things to do than to put a long list into an answer.
        admitted.core->AskJobList([call](absl::StatusOr<host::CoreHost::JobList> jobs) {
          if (!jobs.ok()) return call->End(jobs.status());
          call->EndElsewhere([jobs = *std::move(jobs)] { return ReplyOf(*jobs); });
        });
      });
  listener.Listen<v1::GetJobRequest, v1::JobStatus>(
      REQUEST_OF(service, GetJob), [](const Admitted& admitted, const auto& call) {
        if (!Passes(call, MayLook(admitted.bearer))) return;
        admitted.core->AskStatus(call->request().name(), EndOf<v1::JobStatus>(call));
      });
  listener.Listen<v1::CancelJobRequest, v1::JobStatus>(
      REQUEST_OF(service, CancelJob), [](const Admitted& admitted, const auto& call) {
        if (!Passes(call, MayLook(admitted.bearer))) return;
        constexpr int kNoSignal = 0;
        admitted.core->AskCancel({call->request().name(), call->request().reason(), kNoSignal},
                                 EndOf<v1::JobStatus>(call), OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::SubmitJobRequest, v1::JobStatus>(
      REQUEST_OF(service, SubmitJob), [](const Admitted& admitted, const auto& call) {
        if (!Passes(call, MaySubmit(admitted.bearer, call->request()))) return;
        admitted.core->AskSubmit(call->request(), EndOf<v1::JobStatus>(call),
                                 OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::ReadLogRequest, v1::ReadLogReply>(
      REQUEST_OF(service, ReadLog), [](const Admitted& admitted, const auto& call) {
        if (!Passes(call, MayLook(admitted.bearer))) return;
        admitted.core->AskLog(call->request(), EndOf<v1::ReadLogReply>(call),
                              OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::GetStacksRequest, v1::GetStacksReply>(
      REQUEST_OF(service, GetStacks), [](const Admitted& admitted, const auto& call) {
        if (!Passes(call, MayLook(admitted.bearer))) return;
        admitted.core->AskStacks(call->request(), EndOf<v1::GetStacksReply>(call),
                                 OwnerCheckOf(admitted.bearer));
      });
}

void ServeNodes(v1::Control::AsyncService& service, Listener& listener) {
  listener.Listen<v1::ListNodesRequest, v1::ListNodesReply>(
      REQUEST_OF(service, ListNodes), [](const Admitted& admitted, const auto& call) {
        if (!Passes(call, MayLook(admitted.bearer))) return;
        const auto end = [call, server_id = admitted.core->server_id()](
                             absl::StatusOr<std::vector<v1::ClusterNodeStatus>> nodes) {
          if (!nodes.ok()) return call->End(nodes.status());
          v1::ListNodesReply reply = ReplyOf(*std::move(nodes));
          reply.set_server_id(server_id);
          call->End(std::move(reply));
        };
        admitted.core->AskNodes(end);
      });
  listener.Listen<v1::DrainNodeRequest, v1::ListNodesReply>(
      REQUEST_OF(service, DrainNode), [](const Admitted& admitted, const auto& call) {
        if (!Passes(call, MayDrain(admitted.bearer))) return;
        admitted.core->AskDrain(call->request(), EndOf<std::vector<v1::ClusterNodeStatus>>(call));
      });
}

}  // namespace

void ServeStore(v1::Store::AsyncService& service, CallThreads& threads,
                const Admission& admission) {
  Listener(threads, admission)
      .Listen<v1::StoreRequest, v1::StoreReply>(
          REQUEST_OF(service, Execute), [](const Admitted& admitted, const auto& call) {
            if (!Passes(call, MayCallStore(admitted.bearer))) return;
            const std::shared_ptr<host::CoreThread>& core = admitted.core;
            const CallId id = core->CallStore(
                call->request(), [call](const v1::StoreReply& reply) { call->End(reply); });
            call->WhenCancelled([core, id] { core->DropCall(id); });
          });
}

void ServeControl(v1::Control::AsyncService& service, CallThreads& threads,
                  const Admission& admission) {
  Listener listener(threads, admission);
  ServeJobs(service, listener);
  ServeNodes(service, listener);
}

#undef REQUEST_OF

}  // namespace cadre::service
