#include "agent/local/local_service.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "rpc/frames/messages.h"

namespace cadre::agent {
namespace {

std::string FrameOf(const rpc::WorkerReply& reply) {
  std::string frame;
  frames::AppendMessage(reply, &frame);
  return frame;
}

std::string ThisAgent() {
  return absl::StrCat("this agent is of Cadre ", kVersion, ", which speaks version ",
                      rpc::kWorkerProtocol, " of the worker protocol");
}

absl::Status CannotEncrypt() {
  return absl::FailedPreconditionError(
      absl::StrCat("the job encrypts what its workers send, and the libcadre that the program was "
                   "built with, of before 0.3, cannot: build it with that of ",
                   kVersion));
}

absl::Status OtherProtocol(uint32_t theirs) {
  return absl::FailedPreconditionError(
      absl::StrCat(ThisAgent(), ", but the libcadre that the program was built with version ",
                   theirs, ": use the same version of Cadre for both"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalService>> LocalService::Open(Options options) {
  ASSIGN_OR_RETURN(std::unique_ptr<LocalDirectory> directory,
                   options.directory.empty() ? LocalDirectory::Make(options.parent)
                                             : LocalDirectory::Adopt(options.directory));
  std::unique_ptr<LocalService> service(new LocalService(options, std::move(directory)));
  RETURN_IF_ERROR(service->Serve());
  return service;
}

LocalService::LocalService(const Options& options, std::unique_ptr<LocalDirectory> directory)
    : directory_(std::move(directory)),
      worker_calls_({options.job, options.address,
                     [this](uint64_t to, const rpc::WorkerReply& reply) { Send(to, reply); },
                     [this](AgentEvent event) { events_.push_back(std::move(event)); }}),
      store_calls_([this](uint64_t to, const rpc::WorkerReply& reply) { Send(to, reply); }) {}

absl::Status LocalService::Serve() {
  frames::FrameServer::Options options;
  options.token = directory_->token();
  options.max_frame_bytes = rpc::kWorkerFrameBytesMax;
  options.listener = directory_->listener();
  options.accept = [this](uint64_t) { return directory_->Accept(); };
  options.farewell = [](uint64_t, const absl::Status& why) {
    return FrameOf(rpc::ErrorReply(0, why));
  };
  options.on_frame = [this](uint64_t connection, absl::string_view content) {
    return OnFrame(connection, content);
  };
  options.on_end = [this](uint64_t connection) {
    worker_calls_.Forget(connection);
    store_calls_.Forget(connection);
  };
  ASSIGN_OR_RETURN(server_, frames::FrameServer::Make(std::move(options)));
  return absl::OkStatus();
}

absl::StatusOr<bool> LocalService::RestoreDirectory() {
  const int before = directory_->listener();
  ASSIGN_OR_RETURN(const bool restored, directory_->Restore());
  if (directory_->listener() != before) {
    RETURN_IF_ERROR(server_->ListenAt(directory_->listener()));
  }
  return restored;
}

std::vector<AgentEvent> LocalService::Read() {
  server_->Read();
  return std::exchange(events_, {});
}

absl::Status LocalService::OnFrame(uint64_t connection, absl::string_view content) {
  uint64_t id = 0;
  uint32_t protocol = rpc::kWorkerProtocol;
  std::string said;
  const bool is_hello = rpc::HelloProtocol(content, &id, &protocol);
  if (is_hello && protocol == rpc::kWorkerProtocolBefore && !encrypts_) {
    said = rpc::SayProtocolBefore(content);
    content = said;
  } else if (is_hello && protocol != rpc::kWorkerProtocol) {
    Send(connection,
         rpc::ErrorReply(id, protocol == rpc::kWorkerProtocolBefore ? CannotEncrypt()
                                                                    : OtherProtocol(protocol)));
    return absl::OkStatus();
  }
  absl::StatusOr<rpc::WorkerCall> parsed = frames::ParseMessage<rpc::WorkerCall>(content);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(parsed.status().message(), "; ", ThisAgent()));
  }
  rpc::WorkerCall call = *std::move(parsed);
  if (auto* store = std::get_if<rpc::Store>(&call.what)) {
    std::optional<v1::StoreRequest> request =
        store_calls_.Take(connection, call.id, std::move(*store));
    if (request.has_value()) events_.push_back(WorkerAsked{*std::move(request)});
    return absl::OkStatus();
  }
  std::visit(
      [&](const auto& what) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(what)>, rpc::Store>) {
          worker_calls_.On(connection, call.id, what);
        }
      },
      call.what);
  return absl::OkStatus();
}

void LocalService::Send(uint64_t connection, const rpc::WorkerReply& reply) {
  server_->Answer(connection, FrameOf(reply));
}

}  // namespace cadre::agent
