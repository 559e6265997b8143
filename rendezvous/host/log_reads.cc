#include "rendezvous/host/log_reads.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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
        absl::StrCat("user ", owner, " has ", own,
                     " logs that are being read, which is the limit (logs of a user); try again "
                     "when some have been"));
  }
  if (reads_.size() >= kLogReadsMax) {
    return absl::ResourceExhaustedError("too many logs are read at once; try again later");
  }
  reads_[++last_] = {stream, ended, now + kLogReadTimeout, std::move(done), owner};
  return last_;
}

void LogReads::Take(StreamId stream, const v1::LogChunk& chunk) {
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

void LogReads::EndOfStream(StreamId stream) {
  End([stream](const Read& read) { return read.stream == stream; },
      absl::UnavailableError("the node's agent has gone; try again when it is back"));
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

}  // namespace cadre::host
