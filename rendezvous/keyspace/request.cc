#include "rendezvous/keyspace/request.h"

#include "base/text.h"
#include "base/utf8.h"
#include "rendezvous/keyspace/limits.h"

namespace cadre::keyspace {

Reply ErrorReply(uint64_t client, uint64_t id, absl::StatusCode code, absl::string_view message) {
  Reply reply;
  reply.client = client;
  reply.id = id;
  reply.code = code;
  // It may quote what is stored, which is bytes, and goes on as text.
  reply.message = Shortened(ReplaceInvalidUtf8(message), kMaxMessageBytes);
  return reply;
}

}  // namespace cadre::keyspace
