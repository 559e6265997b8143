#include "tests/faults/mortal_server.h"

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "rpc/channels.h"
#include "tests/faults/kill_at_commit.h"

namespace cadre {
namespace {

// How long a client goes on asking a server that comes and goes.
constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

std::string WriteToken() {
  const std::string path = MakeTempDir("token") + "/token";
  std::ofstream(path) << kToken << "\n";
  chmod(path.c_str(), 0600);
  return path;
}

}  // namespace

MortalServer::MortalServer(const std::string& state_dir)
    : port_(FreePort()),
      state_dir_(state_dir.empty() ? MakeTempDir("state") + "/state" : state_dir),
      token_file_(WriteToken()) {}

std::string MortalServer::endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

bool MortalServer::Start(const std::string& kill) {
  const absl::Time begin = absl::Now();
  const char* const program = kill.empty() ? kCadre : kMortalCadre;
  process_ = StartProgram(program,
                          {"server", "--port", absl::StrCat(port_), "--token-file", token_file_,
                           "--state-dir", state_dir_},
                          {{kKillAtCommit, kill}});
  if (process_ == nullptr) return false;
  const bool serves = process_->WaitForLine("serving at").has_value();
  EXPECT_TRUE(serves) << OutputOf(*process_);
  slowest_start_ = std::max(slowest_start_, absl::Now() - begin);
  return serves;
}

void MortalServer::Kill() {
  process_->Kill(SIGKILL);
  EXPECT_EQ(process_->Wait(), 128 + SIGKILL) << OutputOf(*process_);
  process_.reset();
}

bool MortalServer::WaitDead(absl::Duration timeout) {
  const std::optional<int> status = process_->Wait(timeout);
  if (!status.has_value()) return false;
  EXPECT_EQ(*status, 128 + SIGKILL) << OutputOf(*process_);
  process_.reset();
  return true;
}

std::unique_ptr<Process> MortalServer::StartNode(int node, const std::string& nnodes,
                                                 const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--token-file", token_file_, "--nproc-per-node", "2",
                                        "--job-name",   "job"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return cadre::StartNode(port_, nnodes, node, arguments);
}

StoreClient::StoreClient(const MortalServer& server, std::string job, uint64_t client)
    : token_(kToken), job_(std::move(job)), client_(client) {
  rpc::QuietGrpcLog();
  grpc::ChannelArguments arguments = rpc::ClientChannelArguments();
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
  stub_ = v1::Store::NewStub(
      grpc::CreateCustomChannel(server.endpoint(), grpc::InsecureChannelCredentials(), arguments));
}

absl::StatusOr<v1::StoreReply> StoreClient::Ask(const v1::StoreRequest& request) {
  const absl::Time until = absl::Now() + kTimeout;
  absl::Status last;
  while (absl::Now() < until) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(absl::ToChronoTime(until));
    context.AddMetadata(rpc::kTokenMetadata, token_);
    v1::StoreReply reply;
    last = rpc::FromGrpcStatus(stub_->Execute(&context, request, &reply));
    if (last.ok())
      last = absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message());
    if (last.ok()) return reply;
    if (!absl::IsUnavailable(last)) return last;
  }
  return last;
}

absl::StatusOr<int64_t> StoreClient::Add(const std::string& key, uint64_t request_id) {
  v1::StoreRequest request;
  request.set_job(job_);
  request.set_generation(1);
  request.set_client(client_);
  request.set_request_id(request_id);
  request.mutable_add()->set_key(key);
  request.mutable_add()->set_delta(1);
  const absl::StatusOr<v1::StoreReply> reply = Ask(request);
  if (!reply.ok()) return reply.status();
  return reply->number();
}

}  // namespace cadre
