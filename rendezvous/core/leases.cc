// Leases of nodes end, and what is lost is removed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/job/report.h"

namespace cadre {

MonoTime Core::Impl::LostAt(const Link& link) const {
  // It cannot come back while nobody is let in.
  if (!link.stream.has_value() && !can_save) return now + config.lease;
  const MonoTime lost =
      link.stream.has_value() ? link.last_heard + config.lease : link.gone_since + link.gone_limit;
  return std::max(lost, link.spared_until);
}

bool Core::Impl::IsToBeSpared(const Link& link) const {
  const bool connected = link.stream.has_value();
  // Who comes back on another connection may be in the queue behind what was said on older ones.
  const bool paused = connected ? since_last > 2 * config.reconnect_grace
                                : now - gap_ended_at < config.reconnect_grace;
  const MonoTime due =
      connected ? link.last_heard + config.lease : link.gone_since + link.gone_limit;
  return (now - LostAt(link) > config.reconnect_grace || paused) && now - due < config.lease;
}

void Core::Impl::SetNodeTimer(const std::string& job, const std::string& node, Link* link,
                              MonoTime at) {
  if (link->timer == at) return;
  if (link->timer != MonoTime::Never()) node_timers.erase({link->timer, job, node});
  if (at != MonoTime::Never()) node_timers.insert({at, job, node});
  link->timer = at;
}

void Core::Impl::OnNodeTimer(const std::string& name, const std::string& node) {
  Live& live = lives[name];
  Link& link = live.links[node];
  link.timer = MonoTime::Never();
  // A renewal only moves last_heard; the timer finds that out here.
  if (LostAt(link) > now) return SetNodeTimer(name, node, &link, LostAt(link));
  // While the host stood still the node may have spoken or come back, unread so far.
  if (IsToBeSpared(link)) {
    link.spared_until = now + config.reconnect_grace;
    return SetNodeTimer(name, node, &link, LostAt(link));
  }
  if (HasEnded(FindJob(name)->phase)) {
    sessions.erase(*link.stream);
    Close(*link.stream,
          absl::DeadlineExceededError("the job has ended; this stream is not needed"));
    return EraseLink(name, &live, node);
  }
  const std::string silence = ShortDuration(config.lease);
  if (link.stream.has_value()) {
    RemoveNode(
        name, node, v1::NODE_LOST, absl::StrCat("nothing was heard of it for ", silence),
        absl::DeadlineExceededError(absl::StrCat("nothing was heard of this node for ", silence)));
    return TakeBackFrom(name, node);
  }
  RemoveNode(name, node, v1::NODE_LOST, WhyGone(link, FindJob(name)->nodes.at(node).adopt_timeout),
             absl::OkStatus());
}

std::string Core::Impl::WhyGone(const Link& link, absl::Duration adoptable) {
  if (!link.launcher_end.empty()) return link.launcher_end;
  // From here a process that is gone and a network that is broken look alike.
  return absl::StrCat(
      link.restored ? "it has not come back since the server was started anew"
                    : "its launcher is gone (killed, crashed, or cut off from the network)",
      adoptable == absl::ZeroDuration()
          ? ""
          : absl::StrCat(", and nobody took over its workers within ", ShortDuration(adoptable)));
}

bool Core::Impl::WasSilentBeforeFailure(const JobState& job, const Link& link) const {
  const MonoTime failed = MonoTime::FromMicros(job.generation.failed_us);
  if (!link.stream.has_value()) return link.gone_since <= failed;
  // It had missed a renewal already.
  return link.last_heard + config.lease / 2 < failed;
}

void Core::Impl::RemoveNode(const std::string& name, const std::string& node,
                            v1::FailureCause cause, const std::string& reason, absl::Status close) {
  JobState* job = FindJob(name);
  Live* live = &lives[name];
  const Link link = live->links[node];
  const int rank = NodeRankOf(*job, node);
  const uint64_t generation = job->generation.number;
  const bool member = rank >= 0;
  // A node whose workers have all succeeded is not missed.
  const bool missed =
      member && job->generation.members[rank].succeeded < job->generation.members[rank].slots;
  v1::Record record = NewRecord(name);
  record.mutable_node_removed()->set_node(node);
  record.mutable_node_removed()->set_cause(cause);
  record.mutable_node_removed()->set_reason(reason);
  Commit(std::move(record));
  live->keyspace.ForgetPeer(node);
  if (link.stream.has_value()) {
    sessions.erase(*link.stream);
    Close(*link.stream, std::move(close));
  }
  EraseLink(name, live, node);
  Note(name, absl::StrCat("node ", node, " is out: ", reason));
  Touch(name, true);
  if (!missed) return;
  const v1::Failure failure = PlainFailure(
      cause, node, generation,
      absl::StrCat("node ", node, cause == v1::PREEMPTED ? " was preempted" : " is lost",
                   " in generation ", generation, ": ", reason));
  if (job->phase == v1::RUNNING) return OrderStop(name, job, failure.message(), failure);
  const std::optional<v1::Failure>& root = job->generation.root_cause;
  // The others' workers notice a dead peer sooner than the server notices a dead node.
  if (root.has_value() && root->rank() >= 0 && root->node() != node &&
      WasSilentBeforeFailure(*job, link)) {
    OrderStop(name, job, failure.message(), failure);
  }
}

}  // namespace cadre
