// gRPC's timers when somebody sets the wall clock back. gRPC 1.51 over this Abseil sleeps until the
// next timer by the wall clock: set back by an hour, it lets no deadline and no keepalive pass for
// an hour, and a server that is silent is not missed for as long.
#ifndef CADRE_RPC_GRPC_TIMERS_H_
#define CADRE_RPC_GRPC_TIMERS_H_

namespace cadre::rpc {

// If the wall clock was set back since this process called this last, gRPC looks at its timers
// anew. For who speaks every few seconds, once gRPC is in use. Any thread; reads two clocks.
void WakeGrpcTimersIfClockWasSetBack();

}  // namespace cadre::rpc

#endif  // CADRE_RPC_GRPC_TIMERS_H_
