// One node's stream (Rendezvous.Attach) between gRPC and the core thread.
#ifndef CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_
#define CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>

#include "absl/time/time.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/service/calls.h"

namespace cadre::service {

// Limits of the messages that wait for a node that does not read. They exceed any burst, such as a
// value of the largest size for each of a node's 250 workers. The stream of a node that falls
// further behind is closed with RESOURCE_EXHAUSTED; the node reconnects and gets the newest state.
inline constexpr size_t kWaitingMessagesMax = 4096;
inline constexpr size_t kWaitingBytesMax = 16 << 20;
// How long a closing stream waits for its node to read what was sent.
inline constexpr absl::Duration kCloseTimeout = absl::Seconds(5);

// Serves every stream until the server is shut down. Service, threads and admission must outlive
// the server. `greeting` is sent as rpc::kServerMetadata.
void ServeNodeStreams(v1::Rendezvous::AsyncService& service, CallThreads& threads,
                      const Admission& admission, const char* greeting);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_NODE_STREAM_H_
