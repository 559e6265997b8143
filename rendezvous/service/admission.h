// Whether a call is admitted: by its token, its client certificate, and whether this server leads.
// Also the log of the callers that were refused.
#ifndef CADRE_RENDEZVOUS_SERVICE_ADMISSION_H_
#define CADRE_RENDEZVOUS_SERVICE_ADMISSION_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/time.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/service/caller_limits.h"

namespace cadre::service {

// An admitted call: the core that serves it, and its caller.
struct Admitted {
  std::shared_ptr<host::CoreThread> core;
  Bearer bearer;
  // The loads of all callers; outlives the calls.
  CallerLoads* loads = nullptr;
  // The limits of the caller's requests and answers; null: an administrator has none.
  std::shared_ptr<CallerTraffic> traffic;
  // Not OK: the token has expired. Calls fail with this status; a stream is accepted only from a
  // node that the job has already.
  absl::Status token_ended;
};

// Returns the status with which the call is refused otherwise. Thread safe.
using Admission = std::function<absl::StatusOr<Admitted>(const grpc::ServerContext&)>;

// Standbys begin the message of their error with it.
inline constexpr char kStandby[] = "this server is a standby";

// Determines the bearer of a call's token: reads its "cadre-token" metadata; with an empty `token`
// every caller is an administrator. UNAUTHENTICATED: it is missing or wrong; the message tells how
// to provide it. Whether the token has expired, or is for another state of the server, is not
// checked here. Thread safe.
absl::StatusOr<Bearer> CheckToken(const grpc::ServerContext& context, const std::string& token);

// Admits calls: holds the token that they must carry and the core that serves them at present. The
// caller of Admit adds the loads and limits. Thread safe.
class AdmissionControl {
 public:
  AdmissionControl(std::shared_ptr<host::CoreThread> core, std::string token,
                   bool wants_certificate);

  void SetToken(std::string token);
  std::string token() const;

  // New calls go to `core`, or are refused with `why`.
  void Serve(std::shared_ptr<host::CoreThread> core);
  void Refuse(absl::Status why);
  // The core that serves calls at present, or the error with which they are refused.
  absl::StatusOr<std::shared_ptr<host::CoreThread>> Serving() const;

  absl::StatusOr<Admitted> Admit(const grpc::ServerContext& context) const;

 private:
  absl::Status CheckCertificate(const grpc::ServerContext& context, const Bearer& bearer) const;

  const bool wants_certificate_;
  mutable absl::Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<host::CoreThread> core_ ABSL_GUARDED_BY(mutex_);
  // Why there is no core.
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
};

// The interval at which the same refusal is logged again, and the number of addresses that are
// logged in it.
inline constexpr absl::Duration kRefusalLogInterval = absl::Minutes(1);
inline constexpr size_t kRefusalsLoggedMax = 32;

// Lines for the server's log about refused callers: enough to find a node with an old token, but
// bounded, so that unauthenticated clients cannot fill the disk. Pure; one thread at a time.
class RefusalLog {
 public:
  // Returns the line for a refusal; nullopt: it is only counted, and the next line contains the
  // count.
  std::optional<std::string> Line(MonoTime now, const std::string& address, const std::string& why);

 private:
  // When each was logged, within the last interval.
  std::map<std::string, MonoTime> logged_;
  uint64_t not_logged_ = 0;
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_ADMISSION_H_
