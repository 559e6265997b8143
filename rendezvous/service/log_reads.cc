#include "rendezvous/service/log_reads.h"

#include <utility>

namespace cadre {

absl::StatusOr<uint64_t> LogReads::Add(StreamId stream, MonoTime now, Done done) {
  if (reads_.size() >= kLogReadsMax) {
    return absl::ResourceExhaustedError("too many logs are read at once; try again later");
  }
  reads_[++last_] = {stream, now + kLogReadTimeout, std::move(done)};
  return last_;
}

void LogReads::Take(StreamId stream, const v1::LogChunk& chunk) {
  const auto found = reads_.find(chunk.call());
  if (found == reads_.end() || !(found->second.stream == stream)) return;
  const Done done = std::move(found->second.done);
  reads_.erase(found);
  if (chunk.code() != 0) {
    return done(absl::Status(static_cast<absl::StatusCode>(chunk.code()), chunk.message()));
  }
  v1::ReadLogReply reply;
  reply.set_bytes(chunk.bytes());
  reply.set_offset(chunk.offset());
  done(std::move(reply));
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

}  // namespace cadre
