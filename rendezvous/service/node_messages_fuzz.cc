// Messages of a node, and calls, from all kinds of callers except ann and the administrators, to a
// server that runs ann's job: they must never see what she wrote, and her job must continue.
//
// The first byte selects the token, the rest is a NodeMessage, after which the messages that it
// carries are sent one by one; calls are about the job that it names.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/check.h"
#include "proto/control.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "rendezvous/host/messages_for_test.h"
#include "rendezvous/service/server.h"
#include "rpc/channels.h"
#include "tests/fuzz/fuzz_target.h"

namespace cadre::service {
namespace {

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
constexpr char kSecret[] = "what-ann-wrote-and-nobody-else-may-read";
constexpr absl::Duration kTimeout = absl::Seconds(20);
// How long another caller's stream is kept open to see what it gets.
constexpr absl::Duration kListening = absl::Milliseconds(20);
constexpr int kMaxMessages = 16;
// What other callers create stays on the server.
constexpr int kRunsPerServer = 500;

using NodeStream = grpc::ClientReaderWriter<v1::NodeMessage, v1::ServerMessage>;

// The client's side of a call.
class Call {
 public:
  Call(const std::string& token, absl::Duration deadline) {
    context_.AddMetadata(rpc::kTokenMetadata, token);
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
  }
  grpc::ClientContext* get() { return &context_; }

 private:
  grpc::ClientContext context_;
};

void CheckThatItIsNoSecret(const google::protobuf::Message& heard) {
  CADRE_CHECK(!absl::StrContains(heard.SerializeAsString(), kSecret));
}

// A server that runs ann's job.
class World {
 public:
  World() {
    ServerOptions options;
    options.token = kToken;
    server_ = *Server::Start(options, core_);
    // An earlier server may have had the port, and connections to it may be cached.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                         grpc::InsecureChannelCredentials(), arguments);
    const uint64_t id = core_.server_id();
    const absl::Time later = absl::Now() + kTokenLifetime;
    strangers_ = {UserToken(kToken, id, "bob", later),
                  ReadToken(kToken, id, later),
                  PartToken(kToken, id, 12, "bobs"),
                  PartToken(kToken, id, 12, "job"),
                  UserToken(kToken, id, "ann", absl::Now() - absl::Hours(1)),
                  "no token"};
    StartJobOf(UserToken(kToken, id, "ann", later));
  }
  // The job's node ends with the server.
  ~World() { ann_->get()->TryCancel(); }

  void Run(size_t who, const v1::NodeMessage& first) {
    const std::string& token = strangers_[who % strangers_.size()];
    Attach(token, first);
    CallControl(token, first);
    CallStore(token, first);
    v1::NodeMessage alive = host::GenerationMessageForTest("node0");
    alive.mutable_renew();
    CADRE_CHECK(stream_->Write(alive));
    const absl::StatusOr<v1::JobStatus> job = core_.Status("job");
    CADRE_CHECK(job.ok() && job->started_by() == "ann" && job->generation() == 1);
    CADRE_CHECK(job->phase() == v1::RUNNING);
  }

 private:
  void StartJobOf(const std::string& token) {
    ann_ = std::make_unique<Call>(token, absl::Hours(24));
    stream_ = v1::Rendezvous::NewStub(channel_)->Attach(ann_->get());
    v1::NodeMessage join = host::JoinForTest("node0", 1, 1);
    v1::JobSpec& spec = *join.mutable_join()->mutable_spec();
    spec.add_command(kSecret);
    (*spec.mutable_env())[kSecret] = kSecret;
    CADRE_CHECK(stream_->Write(join));
    v1::ServerMessage message;
    do {
      CADRE_CHECK(stream_->Read(&message));
    } while (!message.has_assign() && !CarriesAnAssign(message));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      v1::NodeMessage started = host::GenerationMessageForTest("node0");
      started.mutable_worker_started()->set_local_rank(rank);
      CADRE_CHECK(stream_->Write(started));
    }
    v1::NodeMessage store = host::GenerationMessageForTest("node0");
    *store.mutable_store() = host::SetForTest(kSecret, kSecret, 1);
    CADRE_CHECK(stream_->Write(store));
    const absl::Time deadline = absl::Now() + kTimeout;
    while (core_.Status("job")->phase() != v1::RUNNING) CADRE_CHECK(absl::Now() < deadline);
  }

  static bool CarriesAnAssign(const v1::ServerMessage& message) {
    for (const v1::ServerMessage& more : message.more()) {
      if (more.has_assign()) return true;
    }
    return false;
  }

  void Attach(const std::string& token, const v1::NodeMessage& first) {
    Call call(token, kListening);
    const auto stream = v1::Rendezvous::NewStub(channel_)->Attach(call.get());
    v1::NodeMessage alone = first;
    alone.clear_more();
    bool open = stream->Write(alone);
    for (int i = 0; open && i < first.more_size() && i < kMaxMessages; ++i) {
      open = stream->Write(first.more(i));
    }
    stream->WritesDone();
    v1::ServerMessage heard;
    while (stream->Read(&heard)) CheckThatItIsNoSecret(heard);
    const grpc::Status status = stream->Finish();
    CADRE_CHECK(!absl::StrContains(status.error_message(), kSecret));
  }

  // Makes a call and ignores its status.
  template <typename Method, typename Request, typename Reply>
  void Control(const std::string& token, Method method, const Request& request, Reply reply) {
    Call call(token, kListening);
    const grpc::Status status = ((*control_).*method)(call.get(), request, &reply);
    CADRE_CHECK(!absl::StrContains(status.error_message(), kSecret));
    CheckThatItIsNoSecret(reply);
  }

  void CallControl(const std::string& token, const v1::NodeMessage& first) {
    using Stub = v1::Control::Stub;
    if (control_ == nullptr) control_ = v1::Control::NewStub(channel_);
    v1::GetJobRequest get;
    get.set_name(first.job());
    Control(token, &Stub::GetJob, get, v1::JobStatus());
    Control(token, &Stub::ListJobs, v1::ListJobsRequest(), v1::ListJobsReply());
    v1::CancelJobRequest cancel;
    cancel.set_name(first.job());
    Control(token, &Stub::CancelJob, cancel, v1::JobStatus());
    v1::ReadLogRequest log;
    log.set_job(first.job());
    Control(token, &Stub::ReadLog, log, v1::ReadLogReply());
    v1::GetStacksRequest stacks;
    stacks.set_job(first.job());
    Control(token, &Stub::GetStacks, stacks, v1::GetStacksReply());
    if (!first.has_join()) return;
    v1::SubmitJobRequest submit;
    *submit.mutable_spec() = first.join().spec();
    submit.set_user(first.join().node());
    Control(token, &Stub::SubmitJob, submit, v1::JobStatus());
  }

  void CallStore(const std::string& token, const v1::NodeMessage& first) {
    if (!first.has_store()) return;
    Call call(token, kListening);
    v1::StoreReply reply;
    v1::Store::NewStub(channel_)->Execute(call.get(), first.store(), &reply);
    CheckThatItIsNoSecret(reply);
  }

  host::CoreThread core_{host::NewCoreConfig()};
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> control_;
  std::vector<std::string> strangers_;
  std::unique_ptr<Call> ann_;
  std::unique_ptr<NodeStream> stream_;
};

}  // namespace
}  // namespace cadre::service

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const world = new std::unique_ptr<cadre::service::World>;
  static int runs = 0;
  const absl::string_view text = cadre::fuzz::Text(data, size);
  // libFuzzer also tries texts that are compared, so an input with the secret proves nothing.
  if (text.empty() || absl::StrContains(text, cadre::service::kSecret)) return 0;
  cadre::v1::NodeMessage first;
  if (!first.ParseFromArray(data + 1, static_cast<int>(size) - 1)) return 0;
  if (*world == nullptr || ++runs % cadre::service::kRunsPerServer == 0) {
    world->reset();
    *world = std::make_unique<cadre::service::World>();
  }
  (*world)->Run(data[0], first);
  return 0;
}
