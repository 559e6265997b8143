#include "rendezvous/keyspace/store_request.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/keyspace/store_limits.h"

namespace cadre::keyspace {
namespace {

absl::Status Check(absl::string_view what, absl::string_view name) {
  if (name.empty() || name.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " must have 1 to ", kMaxKeyBytes, " bytes; got ", name.size()));
  }
  if (IsUtf8(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", Quoted(ReplaceInvalidUtf8(name)), " is not UTF-8"));
}

struct NameChecker {
  template <typename OnKey>
  absl::Status operator()(const OnKey& operation) const {
    return Check("key", operation.key);
  }
  absl::Status operator()(const EnterBarrier& enter) const {
    return Check("barrier name", enter.name);
  }
  absl::Status operator()(const PublishId& publish) const {
    return Check("communicator", publish.communicator);
  }
  absl::Status operator()(const GetId& get) const {
    return Check("communicator", get.communicator);
  }
};

}  // namespace

absl::Status CheckName(const Operation& operation) { return std::visit(NameChecker(), operation); }

Reply ErrorReply(uint64_t client, uint64_t id, absl::StatusCode code, absl::string_view message) {
  Reply reply;
  reply.client = client;
  reply.id = id;
  reply.code = code;
  // The message may quote stored values, which are arbitrary bytes, and is sent as text.
  reply.message = Shortened(ReplaceInvalidUtf8(message), kMaxMessageBytes);
  return reply;
}

}  // namespace cadre::keyspace
