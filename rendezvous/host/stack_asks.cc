#include "rendezvous/host/stack_asks.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::host {
namespace {

constexpr size_t kMaxWhyBytes = 256;

void AddSilent(const saved::Member& member, absl::string_view why, v1::GetStacksReply* reply) {
  if (reply->silent_size() >= kSilentNodesMax) {
    reply->set_silent_left_out(reply->silent_left_out() + 1);
    return;
  }
  v1::SilentNode* silent = reply->add_silent();
  silent->set_node(member.node());
  silent->set_first_rank(member.first_rank());
  silent->set_workers(member.slots());
  silent->set_why(OneLine(why, kMaxWhyBytes));
}

}  // namespace

absl::StatusOr<uint64_t> StackAsks::Add(const StackSources& sources,
                                        const v1::StackQuestion& question, MonoTime now, Done done,
                                        const std::string& owner) {
  const auto own = std::count_if(asks_.begin(), asks_.end(), [&](const auto& ask) {
    return !owner.empty() && ask.second.owner == owner;
  });
  if (static_cast<size_t>(own) >= kStackAsksOfUserMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("user ", owner, " asks for the stacks of ", own,
                     " jobs at once, which is the limit (stacks of a user); try again when some "
                     "have answered"));
  }
  if (asks_.size() >= kStackAsksMax) {
    return absl::ResourceExhaustedError("too many ask for stacks at once; try again later");
  }
  Ask& ask = asks_[++last_];
  ask.limit = question.native() ? kNativeStacksTimeout : kStacksTimeout;
  ask.deadline = now + ask.limit;
  ask.done = std::move(done);
  ask.owner = owner;
  ask.reply.set_job(sources.job);
  ask.reply.set_generation(sources.generation);
  ask.reply.set_world_size(sources.world_size);
  for (const StackSources::Node& node : sources.nodes) {
    if (node.stream.has_value()) {
      ask.awaited.emplace(*node.stream, node.member);
    } else {
      AddSilent(node.member, node.why, &ask.reply);
    }
  }
  if (ask.awaited.empty()) End(asks_.find(last_));
  return last_;
}

void StackAsks::Take(StreamId stream, const v1::NodeStacks& stacks) {
  const auto found = asks_.find(stacks.call());
  if (found == asks_.end()) return;
  Ask& ask = found->second;
  const auto node = ask.awaited.find(stream);
  if (node == ask.awaited.end()) return;
  if (!stacks.why().empty()) AddSilent(node->second, stacks.why(), &ask.reply);
  for (const v1::RankStack& rank : stacks.ranks()) ask.groups.Add(node->second, rank);
  ask.awaited.erase(node);
  if (ask.awaited.empty()) End(found);
}

void StackAsks::EndOfStream(StreamId stream) {
  for (auto ask = asks_.begin(); ask != asks_.end();) {
    const auto node = ask->second.awaited.find(stream);
    if (node != ask->second.awaited.end()) {
      AddSilent(node->second, "has gone", &ask->second.reply);
      ask->second.awaited.erase(node);
    }
    ask = ask->second.awaited.empty() ? End(ask) : std::next(ask);
  }
}

void StackAsks::Expire(MonoTime now) {
  for (auto ask = asks_.begin(); ask != asks_.end();) {
    if (ask->second.deadline > now) {
      ++ask;
      continue;
    }
    for (const auto& [stream, member] : ask->second.awaited) {
      AddSilent(member,
                absl::StrCat("has not answered within ", absl::FormatDuration(ask->second.limit)),
                &ask->second.reply);
    }
    ask = End(ask);
  }
}

void StackAsks::EndAll(const absl::Status& why) {
  for (auto& [number, ask] : std::exchange(asks_, {})) ask.done(why);
}

MonoTime StackAsks::NextDeadline() const {
  MonoTime next = MonoTime::Never();
  for (const auto& [number, ask] : asks_) next = std::min(next, ask.deadline);
  return next;
}

StackAsks::Asks::iterator StackAsks::End(Asks::iterator ask) {
  Ask ended = std::move(ask->second);
  const auto next = asks_.erase(ask);
  *ended.reply.mutable_groups() = ended.groups.Take();
  std::sort(ended.reply.mutable_silent()->begin(), ended.reply.mutable_silent()->end(),
            [](const auto& a, const auto& b) { return a.first_rank() < b.first_rank(); });
  ended.done(std::move(ended.reply));
  return next;
}

}  // namespace cadre::host
