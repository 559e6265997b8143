// Methods of AgentCore::Impl: what the agent does when something happens on its own node.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/impl.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "rpc/store_reply.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

// Progress of the node's workers goes up at most once within this.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);

}  // namespace

void AgentCore::Impl::OnWorkerDied(const WorkerDied& event) {
  const bool failed_before = generation.failure().has_value();
  const std::string fenced_because =
      absl::StrCat("the server had not answered for ",
                   absl::FormatDuration(session.fence().patience()), " (--strict-fencing)");
  if (!generation.OnDied(event, now, config.join.node(), fenced_because)) return;
  if (generation.failure() && !failed_before && !session.welcomed() && !session.lost_for_good()) {
    out.Add(Say{absl::StrCat(generation.failure()->message(),
                             "; the server hears of it when it can be reached")});
  }
  // Of a generation that another server announced this one hears the end alone.
  if (!Tells()) return;
  // How far it came is news for the last time.
  progress.due = MonoTime();
  SendProgress();
  out.Up(ExitedMessage(generation.workers().at(event.local_rank)), generation.id());
}

void AgentCore::Impl::OnUnkillable(const WorkerUnkillable& event) {
  const uint32_t local_rank = event.remains.local_rank();
  if (!generation.OnUnkillable(event, now)) return;
  out.Add(Say{absl::StrCat(generation.NameOf(local_rank), " ", rpc::WhatRemains(event.remains),
                           "; until then this launcher starts no workers")});
  if (!session.welcomed()) return;
  out.Up(RemainsMessage(generation.workers().at(local_rank)), generation.id());
}

void AgentCore::Impl::GoOnIfClear() {
  if (!generation.EndIfClear()) return;
  if (HasRemains(generation.workers()) && !departure.exit) {
    out.Add(Say{"what SIGKILL had not ended is gone: this node can take part in the job again"});
  }
  if (departure.exit) return Finish();
  if (orders.stop && session.welcomed()) SendStopped(*orders.stop);
  if (!orders.next) return;
  const auto [assigned, assign] = *std::exchange(orders.next, std::nullopt);
  Start(assigned, assign);
}

void AgentCore::Impl::SendProgress() {
  if (!session.welcomed() || !generation.running() || !progress.news || now < progress.due) return;
  v1::NodeMessage message;
  *message.mutable_progress() = SumOfProgress(generation.workers());
  out.Up(std::move(message), generation.id());
  progress = {false, now + kProgressInterval};
}

void AgentCore::Impl::OnSupervisorLost(const SupervisorLost& event) {
  SendLeave(v1::NODE_LOST, event.why);
  const bool had_workers = generation.Alive();
  generation.Lost();
  if (!departure.exit) {
    departure.exit =
        Exit{kExitInternal,
             absl::StrCat(event.why, had_workers ? "; the workers of this node were killed" : ""),
             {},
             {}};
  }
  Finish();
}

void AgentCore::Impl::OnWorkerAsked(const v1::StoreRequest& request) {
  const auto refuse = [&](const absl::Status& status) {
    out.Add(StoreAnswer{rpc::StoreErrorReply(request, status)});
  };
  const uint64_t number = generation.id().number;
  if (!generation.running() || departure.exit || request.generation() != number ||
      request.job() != config.job) {
    return refuse(absl::AbortedError(absl::StrCat(
        "generation ", request.generation(), " of job ", OneLine(request.job(), kMaxErrorText),
        " does not run on this node; the current one is ", number, " of ", config.job)));
  }
  const absl::StatusOr<bool> added = store_calls.Add(request);
  if (!added.ok()) return refuse(added.status());
  // It waits already, or is sent after the next Welcome.
  if (!*added || !session.welcomed()) return;
  v1::NodeMessage message;
  *message.mutable_store() = request;
  out.Up(std::move(message), generation.id());
}

}  // namespace cadre::agent
