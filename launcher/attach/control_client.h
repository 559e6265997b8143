// A client for a server's control calls. Calls block for ten seconds at most; three for each of
// several servers; a submission twice as long; a request for stacks sixteen seconds.
#ifndef CADRE_LAUNCHER_ATTACH_CONTROL_CLIENT_H_
#define CADRE_LAUNCHER_ATTACH_CONTROL_CLIENT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/attach/security.h"
#include "launcher/flags/command.h"
#include "launcher/flags/settings.h"
#include "proto/accounting.pb.h"
#include "proto/control.pb.h"
#include "proto/spec.pb.h"
#include "rpc/tls/transport_security.h"

namespace cadre::launcher {

// The servers that --server names.
struct ServerAddresses {
  // As users write them, with ports.
  std::vector<std::string> names;
  // The addresses to connect to, one for each name.
  std::vector<std::string> addresses;
  FoundToken token;
  rpc::TransportSecurity security;
  // --insecure was given: network traffic is not encrypted.
  bool insecure = false;
};

// From --server, --token-file, --tls-dir and --insecure. INVALID_ARGUMENT: they do not fit
// together.
absl::StatusOr<ServerAddresses> FindServers(const Settings& settings);

class ControlClient {
 public:
  // Connects to the servers of FindServers(). The token and TLS files are read again for each
  // connection.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(const Settings& settings);
  ~ControlClient();

  absl::StatusOr<std::vector<v1::JobStatus>> List();
  absl::StatusOr<v1::JobStatus> Get(const std::string& job);
  // Retries if no answer comes; the job is created once only. If no answer comes in the end, the
  // error says that the job may have been accepted. `within`: the id of the batch job whose step it
  // is; empty: it is a job of its own. With indices in `array` the job is submitted once for each
  // of them, and the answer is the first element.
  absl::StatusOr<v1::JobStatus> Submit(const v1::JobSpec& spec, const std::string& user,
                                       const std::string& within = "",
                                       const v1::ArrayElements& array = {});
  absl::StatusOr<v1::ListNodesReply> Nodes();
  absl::StatusOr<v1::ListNodesReply> Drain(const std::string& node, bool drained,
                                           const std::string& reason);
  absl::StatusOr<v1::ReadLogReply> ReadLog(const v1::ReadLogRequest& request);
  absl::StatusOr<v1::GetStacksReply> GetStacks(const v1::GetStacksRequest& request);
  // Jobs that have ended, and sums of what they used. FAILED_PRECONDITION: the server keeps no
  // accounting. UNIMPLEMENTED: it is of an earlier version.
  absl::StatusOr<v1::HistoryReply> History(const v1::HistoryRequest& request);
  absl::StatusOr<v1::UsageReply> Usage(const v1::UsageRequest& request);
  // `at_once`: its workers are killed without grace.
  absl::StatusOr<v1::JobStatus> Cancel(const std::string& job, const std::string& reason,
                                       bool at_once = false);
  // UNIMPLEMENTED, also of those that follow: the server is of an earlier version.
  absl::StatusOr<v1::JobStatus> Requeue(const std::string& job, const std::string& reason,
                                        bool hold);
  absl::StatusOr<v1::JobStatus> Signal(const std::string& job, int signal,
                                       v1::SignalJobRequest::Target target);
  absl::StatusOr<v1::JobStatus> Update(const std::string& job, const v1::JobUpdate& update);

 private:
  struct State;
  explicit ControlClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The flags that Connect reads.
std::vector<Flag> ControlFlags();

// The exit status of the process for a failed call.
int ControlExit(const absl::Status& status);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_CONTROL_CLIENT_H_
