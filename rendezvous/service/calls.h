// The unary calls (Store, Control) between gRPC and the core thread.
#ifndef CADRE_RENDEZVOUS_SERVICE_CALLS_H_
#define CADRE_RENDEZVOUS_SERVICE_CALLS_H_

#include "proto/control.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/service/admission.h"
#include "rendezvous/service/call_threads.h"

namespace cadre::service {

// Serve every call that comes, until the server is shut down. Service, threads and admission must
// outlive the server.

// The core's answer, whatever its code, is the reply of a call with status OK: a
// compare-and-set that found another value returns that value.
void ServeStore(v1::Store::AsyncService& service, CallThreads& threads, const Admission& admission);

void ServeControl(v1::Control::AsyncService& service, CallThreads& threads,
                  const Admission& admission);

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_CALLS_H_
