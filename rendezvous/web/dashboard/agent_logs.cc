#include "rendezvous/web/dashboard/agent_logs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/host/log_reads.h"
#include "rendezvous/web/dashboard/log_tails.h"
#include "rendezvous/web/dashboard/reply_error.h"

namespace cadre::web {

AgentLogs::AgentLogs(Serving serving, HttpServer::Places places)
    : serving_(std::move(serving)), places_(std::move(places)) {}

void AgentLogs::Add(std::shared_ptr<HttpExchange> exchange, v1::ReadLogRequest request,
                    host::OwnerCheck may) {
  request.set_tail(kTailBytes);
  readers_.push_back(std::make_shared<Reader>(
      Reader{std::move(exchange), std::move(request), std::move(may), false, false, 0}));
  Ask(readers_.back());
}

void AgentLogs::Tick() {
  readers_.erase(std::remove_if(readers_.begin(), readers_.end(),
                                [](const auto& reader) { return reader->exchange->closed(); }),
                 readers_.end());
  // One that cannot be asked is answered at once.
  const std::vector<std::shared_ptr<Reader>> readers = readers_;
  for (const std::shared_ptr<Reader>& reader : readers) {
    reader->bytes = 0;
    if (!reader->asked && reader->exchange->waiting() < kTailBytesPerTick) Ask(reader);
  }
}

void AgentLogs::Ask(const std::shared_ptr<Reader>& reader) {
  const auto core = serving_();
  if (!core.ok()) return Take(reader, core.status());
  const HttpServer::Poster post = places_();
  // With the next tick, then.
  if (!post) return;
  reader->asked = true;
  (*core)->AskLog(
      reader->request,
      [this, post, reader](absl::StatusOr<v1::ReadLogReply> reply) {
        post([this, reader, reply = std::move(reply)] { Take(reader, reply); });
      },
      reader->may);
}

void AgentLogs::Take(const std::shared_ptr<Reader>& reader,
                     const absl::StatusOr<v1::ReadLogReply>& reply) {
  reader->asked = false;
  HttpExchange& exchange = *reader->exchange;
  if (exchange.closed()) return;
  const absl::Status& why = reply.status();
  if (!reply.ok() && !absl::IsNotFound(why) && !host::MayReadLater(why)) {
    if (!reader->begun) return ReplyError(exchange, why);
    exchange.Write(absl::StrCat("(", why.message(), ")\n"));
    return exchange.End();
  }
  if (!reader->begun) {
    reader->begun = exchange.Begin(kTextType);
    if (!reader->begun) return;
    // Nothing may come for long.
    if (absl::IsUnavailable(why)) exchange.Write(absl::StrCat("(", why.message(), ")\n"));
  }
  if (!reply.ok()) return;
  if (reply->ended() && reply->bytes().empty()) return exchange.End();
  exchange.Write(reply->bytes());
  reader->bytes += reply->bytes().size();
  reader->request.clear_tail();
  reader->request.set_offset(reply->offset() + reply->bytes().size());
  const bool more = reply->bytes().size() == host::kLogChunkBytes;
  if (more && reader->bytes < kTailBytesPerTick) Ask(reader);
}

void AgentLogs::Finish() {
  for (const std::shared_ptr<Reader>& reader : readers_) {
    if (reader->begun) reader->exchange->End();
  }
  readers_.clear();
}

}  // namespace cadre::web
