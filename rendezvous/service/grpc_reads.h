// Lets a ConnectionWatch see what a peer sends before gRPC does, after TLS is removed. gRPC has no
// hook for that, so the linker redirects calls between two of gRPC's functions to this library
// (--wrap in its BUILD rule). This works where gRPC is linked from its archive, as into `cadre`;
// programs that use gRPC's shared library watch nothing. Thread safe.
#ifndef CADRE_RENDEZVOUS_SERVICE_GRPC_READS_H_
#define CADRE_RENDEZVOUS_SERVICE_GRPC_READS_H_

#include <memory>

#include "rendezvous/service/connection_watch.h"

namespace cadre::service {

// Call it before gRPC gets `fd` as a server's connection: `watch` then sees all that arrives. It is
// kept until gRPC is done with the connection, even if the peer has closed its half before.
void WatchReads(int fd, std::shared_ptr<ConnectionWatch> watch);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_GRPC_READS_H_
