// Whether a call may come in.
#ifndef CADRE_RENDEZVOUS_SERVICE_ADMISSION_H_
#define CADRE_RENDEZVOUS_SERVICE_ADMISSION_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bearer_token.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/service/caller_loads.h"

namespace cadre::service {

// To whom the call goes, and who calls.
struct Admitted {
  std::shared_ptr<host::CoreThread> core;
  Bearer bearer;
  // Of all callers; outlives the calls.
  CallerLoads* loads = nullptr;
  // Not OK: its token has ended, and begins nothing any more.
  absl::Status token_ended;
};

// Or with what it is refused. Thread safe.
using Admission = std::function<absl::StatusOr<Admitted>(const grpc::ServerContext&)>;

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_ADMISSION_H_
