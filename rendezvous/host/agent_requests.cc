#include "rendezvous/host/agent_requests.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cadre::host {

bool MayReadLater(const absl::Status& why) {
  return absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) ||
         absl::IsResourceExhausted(why);
}

absl::StatusOr<uint64_t> LogReads::Add(StreamId stream, bool ended, MonoTime now, Done done,
                                       const std::string& owner) {
  const auto own = std::count_if(reads_.begin(), reads_.end(), [&](const auto& read) {
    return !owner.empty() && read.second.owner == owner;
  });
  if (static_cast<size_t>(own) >= kLogReadsOfUserMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(own, " logs of user ", owner,
                     "'s jobs are being read, which is the limit (logs of a user); try again when "
                     "some of these reads have ended"));
  }
  if (reads_.size() >= kLogReadsMax) {
    return absl::ResourceExhaustedError("too many reads of logs wait for answers; try again later");
  }
  reads_[++last_] = {stream, ended, now + kLogReadTimeout, std::move(done), owner};
  return last_;
}

void LogReads::OnChunk(StreamId stream, const v1::LogChunk& chunk) {
  const auto found = reads_.find(chunk.call());
  if (found == reads_.end() || !(found->second.stream == stream)) return;
  const Read read = std::move(found->second);
  reads_.erase(found);
  if (chunk.code() != 0) {
    const auto code = static_cast<absl::StatusCode>(chunk.code());
    const bool never = read.ended && code == absl::StatusCode::kNotFound;
    return read.done(
        absl::Status(never ? absl::StatusCode::kFailedPrecondition : code, chunk.message()));
  }
  v1::ReadLogReply reply;
  reply.set_bytes(chunk.bytes());
  reply.set_offset(chunk.offset());
  reply.set_file(chunk.file());
  reply.set_ended(read.ended);
  read.done(std::move(reply));
}

template <typename Which>
void LogReads::End(const Which& which, const absl::Status& why) {
  for (auto it = reads_.begin(); it != reads_.end();) {
    if (!which(it->second)) {
      ++it;
      continue;
    }
    const Done done = std::move(it->second.done);
    it = reads_.erase(it);
    done(why);
  }
}

void LogReads::OnStreamClosed(StreamId stream) {
  End([stream](const Read& read) { return read.stream == stream; },
      absl::UnavailableError(
          "the connection to the node's agent has ended; try again when the agent is back"));
}

void LogReads::Expire(MonoTime now) {
  End([now](const Read& read) { return read.deadline <= now; },
      absl::DeadlineExceededError("the node's agent does not answer"));
}

void LogReads::EndAll(const absl::Status& why) {
  End([](const Read&) { return true; }, why);
}

MonoTime LogReads::NextDeadline() const {
  return reads_.empty() ? MonoTime::Never() : reads_.begin()->second.deadline;
}

namespace {

constexpr size_t kMaxWhyBytes = 256;

void AddSilentNode(const saved::Member& member, absl::string_view why, v1::GetStacksReply* reply) {
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

absl::StatusOr<uint64_t> StackRequests::Add(const StackSources& sources,
                                            const v1::StackQuestion& question, MonoTime now,
                                            Done done, const std::string& owner) {
  const auto own = std::count_if(requests_.begin(), requests_.end(), [&](const auto& request) {
    return !owner.empty() && request.second.owner == owner;
  });
  if (static_cast<size_t>(own) >= kStackRequestsOfUserMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("user ", owner, " asks for the stacks of ", own,
                     " jobs at once, which is the limit (stacks of a user); try again when some "
                     "have answered"));
  }
  if (requests_.size() >= kStackRequestsMax) {
    return absl::ResourceExhaustedError(
        "too many requests for stacks wait for answers; try again later");
  }
  Request& request = requests_[++last_];
  request.limit = question.native() ? kNativeStacksTimeout : kStacksTimeout;
  request.deadline = now + request.limit;
  request.done = std::move(done);
  request.owner = owner;
  request.reply.set_job(sources.job);
  request.reply.set_generation(sources.generation);
  request.reply.set_world_size(sources.world_size);
  for (const StackSources::Node& node : sources.nodes) {
    if (node.stream.has_value()) {
      request.awaited.emplace(*node.stream, node.member);
    } else {
      AddSilentNode(node.member, node.why, &request.reply);
    }
  }
  if (request.awaited.empty()) End(requests_.find(last_));
  return last_;
}

void StackRequests::OnAnswer(StreamId stream, const v1::NodeStacks& stacks) {
  const auto found = requests_.find(stacks.call());
  if (found == requests_.end()) return;
  Request& request = found->second;
  const auto node = request.awaited.find(stream);
  if (node == request.awaited.end()) return;
  if (!stacks.why().empty()) AddSilentNode(node->second, stacks.why(), &request.reply);
  for (const v1::RankStack& rank : stacks.ranks()) request.groups.Add(node->second, rank);
  request.awaited.erase(node);
  if (request.awaited.empty()) End(found);
}

void StackRequests::OnStreamClosed(StreamId stream) {
  for (auto request = requests_.begin(); request != requests_.end();) {
    const auto node = request->second.awaited.find(stream);
    if (node != request->second.awaited.end()) {
      AddSilentNode(node->second, "has gone", &request->second.reply);
      request->second.awaited.erase(node);
    }
    request = request->second.awaited.empty() ? End(request) : std::next(request);
  }
}

void StackRequests::Expire(MonoTime now) {
  for (auto request = requests_.begin(); request != requests_.end();) {
    if (request->second.deadline > now) {
      ++request;
      continue;
    }
    for (const auto& [stream, member] : request->second.awaited) {
      AddSilentNode(
          member,
          absl::StrCat("has not answered within ", absl::FormatDuration(request->second.limit)),
          &request->second.reply);
    }
    request = End(request);
  }
}

void StackRequests::EndAll(const absl::Status& why) {
  for (auto& [number, request] : std::exchange(requests_, {})) request.done(why);
}

MonoTime StackRequests::NextDeadline() const {
  MonoTime next = MonoTime::Never();
  for (const auto& [number, request] : requests_) next = std::min(next, request.deadline);
  return next;
}

StackRequests::Requests::iterator StackRequests::End(Requests::iterator request) {
  Request ended = std::move(request->second);
  const auto next = requests_.erase(request);
  *ended.reply.mutable_groups() = ended.groups.Take();
  std::sort(ended.reply.mutable_silent()->begin(), ended.reply.mutable_silent()->end(),
            [](const auto& a, const auto& b) { return a.first_rank() < b.first_rank(); });
  ended.done(std::move(ended.reply));
  return next;
}

}  // namespace cadre::host
