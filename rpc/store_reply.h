// Replies of the store that carry an error status.
#ifndef CADRE_RPC_STORE_REPLY_H_
#define CADRE_RPC_STORE_REPLY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/store.pb.h"

namespace cadre::rpc {

inline v1::StoreReply StoreErrorReply(uint64_t client, uint64_t request_id,
                                      const absl::Status& status) {
  v1::StoreReply reply;
  reply.set_client(client);
  reply.set_request_id(request_id);
  reply.set_code(static_cast<int>(status.code()));
  reply.set_message(std::string(status.message()));
  return reply;
}

inline v1::StoreReply StoreErrorReply(const v1::StoreRequest& request, const absl::Status& status) {
  return StoreErrorReply(request.client(), request.request_id(), status);
}

}  // namespace cadre::rpc

#endif  // CADRE_RPC_STORE_REPLY_H_
