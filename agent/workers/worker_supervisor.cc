#include "agent/workers/worker_supervisor.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cadre::agent {

WorkerSupervisor::WorkerSupervisor(std::unique_ptr<supervisor::Client> client, Display& display)
    : client_(std::move(client)), display_(display) {
  CADRE_CHECK(client_ != nullptr, "an agent begins with a supervisor");
}

bool WorkerSupervisor::Send(const supervisor::Frame& frame, MonoTime now) {
  if (!exists()) return true;
  const absl::Status sent = client_->Send(frame, now);
  if (sent.ok() || absl::IsUnavailable(sent)) return true;
  why_lost_ = absl::StrCat("cannot give orders to cadre-supervisor: ", sent.message());
  display_.Line(why_lost_);
  client_.reset();
  return false;
}

absl::StatusOr<std::vector<supervisor::Frame>> WorkerSupervisor::Read() {
  if (!exists()) return std::vector<supervisor::Frame>();
  // If the write fails, reading reports why.
  if (client_->WantsWrite()) client_->Flush().IgnoreError();
  absl::StatusOr<std::vector<supervisor::Frame>> frames = client_->Read();
  if (!frames.ok()) return frames;
  has_started_a_worker_ =
      has_started_a_worker_ || std::any_of(frames->begin(), frames->end(), [](const auto& frame) {
        return std::holds_alternative<supervisor::StartedFrame>(frame);
      });
  return frames;
}

bool WorkerSupervisor::Replace(const std::string& how) {
  if (exists()) leftovers_ = client_->leftovers();
  client_.reset();
  absl::StatusOr<std::unique_ptr<supervisor::Client>> another =
      absl::UnavailableError("the one that is gone had started no worker");
  if (std::exchange(has_started_a_worker_, false)) another = supervisor::Client::Start();
  if (!another.ok()) {
    why_lost_ = absl::StrCat(how, "; no other one is started: ", another.status().message());
    display_.Line(why_lost_);
    return false;
  }
  display_.Line(absl::StrCat(how, "; another one is started, this node's workers were killed"));
  client_ = *std::move(another);
  return true;
}

std::vector<supervisor::RemainsFrame> WorkerSupervisor::KillLeftovers() {
  return supervisor::KillLeftovers(leftovers_, absl::ZeroDuration());
}

void WorkerSupervisor::ContinueIfStopped() {
  if (!exists()) return;
  const std::string stopped = client_->ContinueIfStopped();
  if (!stopped.empty()) display_.Line(stopped);
}

void WorkerSupervisor::Release() {
  if (exists()) client_->Release();
}

}  // namespace cadre::agent
