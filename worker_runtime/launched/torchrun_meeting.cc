#include "worker_runtime/launched/torchrun_meeting.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "worker_runtime/launched/address_meeting.h"
#include "worker_runtime/launched/torch_store.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/store/addresses.h"

namespace cadre::launched {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(500);
// Of what rank 0 says: host, port and a random word.
constexpr size_t kMaxAnnouncement = 1024;
// For whoever has got the port of an earlier rank 0, until the new one says where it is.
constexpr absl::Duration kRefusalPatience = absl::Seconds(10);

class TorchrunMeeting : public MeetingPlace {
 public:
  TorchrunMeeting(const environment::ThroughTorchrun& through, const environment::Secret& secret)
      : through_(through), secret_(secret) {}

  Result<Door> Open() override {
    host_ = store::kLoopback;
    if (secret_.from_file) {
      RETURN_IF_ERROR(Connect());
      // Of this node as the one that has torchrun's store reaches it; on that one its own name.
      host_ = store_->local_address();
      if (store::IsLoopback(host_)) host_ = through_.host;
    }
    ASSIGN_OR_RETURN(ScopedFd listener, ListenAsHost(host_, 0));
    nonce_ = RandomToken();
    return Door{std::move(listener), KeyFor(nonce_)};
  }

  Status Announce(const Door&, const std::string& endpoint) override {
    RETURN_IF_ERROR(Connect());
    const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
    return store_->Set(through_.key, absl::StrCat(host_, " ", port, " ", nonce_));
  }

  Result<store::StoreAddress> Find() override {
    RETURN_IF_ERROR(Connect());
    Result<std::optional<std::string>> said = store_->Get(through_.key, kMaxAnnouncement);
    if (!said.ok()) {
      // Once more, on a new connection.
      store_.reset();
      RETURN_IF_ERROR(Connect());
      said = store_->Get(through_.key, kMaxAnnouncement);
    }
    RETURN_IF_ERROR(said.status());
    if (!said->has_value()) return NotFoundError("rank 0 has not said yet where it is");
    const std::vector<std::string> words = absl::StrSplit(**said, ' ');
    int port = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[1], &port)) {
      return InternalError(
          absl::StrCat("torchrun's store holds no address of rank 0 under ", through_.key));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> addresses, store::AddressesOf(words[0]));
    return store::StoreAddress{
        store::EndpointAt(addresses[next_++ % addresses.size()], static_cast<uint16_t>(port)),
        KeyFor(words[2])};
  }

  absl::Duration RefusalPatience() const override { return kRefusalPatience; }

 private:
  // The word is this rank 0's alone, so that nobody takes another launch's for it.
  std::string KeyFor(const std::string& nonce) const {
    return KeyedDigest(secret_.token, absl::StrCat("torchrun ", through_.key, " ", nonce));
  }

  Status Connect() {
    if (store_.has_value()) return OkStatus();
    const MonoTime deadline = MonoNow() + kTorchrunPatience;
    while (true) {
      ASSIGN_OR_RETURN(const std::vector<std::string> addresses, store::AddressesOf(through_.host));
      Status why;
      for (const std::string& address : addresses) {
        Result<TorchStore> store = TorchStore::Connect(store::EndpointAt(address, through_.port));
        if (store.ok()) {
          store_ = *std::move(store);
          return OkStatus();
        }
        why = store.status();
      }
      if (MonoNow() + kPause >= deadline) return Unanswered(why);
      absl::SleepFor(kPause);
    }
  }

  Status Unanswered(const Status& why) const {
    return UnavailableError(absl::StrCat(
        "the store at ", through_.host, ":", through_.port,
        ", which torchrun says it serves, does not speak the protocol of PyTorch 2.1 or newer (",
        why.message(), "): give an older torchrun --rdzv-backend c10d, or use \"cadre run\""));
  }

  const environment::ThroughTorchrun through_;
  const environment::Secret secret_;
  std::optional<TorchStore> store_;
  std::string host_;
  std::string nonce_;
  size_t next_ = 0;
};

}  // namespace

Result<std::unique_ptr<MeetingPlace>> MeetThroughTorchrun(
    const environment::ThroughTorchrun& through, const environment::Secret& secret, bool one_node) {
  if (!secret.from_file && !one_node && !store::NamesLoopback(through.host)) {
    return FailedPreconditionError(
        "CADRE_SECRET_FILE is not set, so the ranks may only meet on one machine, but torchrun "
        "started several nodes: set it to a file with the same content on all nodes (\"cadre token "
        "new FILE\" makes one)");
  }
  return std::unique_ptr<MeetingPlace>(std::make_unique<TorchrunMeeting>(through, secret));
}

}  // namespace cadre::launched
