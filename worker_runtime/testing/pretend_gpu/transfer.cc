#include <algorithm>
#include <cstring>
#include <memory>

#include "worker_runtime/testing/pretend_gpu/collective.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

#include "worker_runtime/testing/pretend_gpu/elements.h"

namespace cadre::pretend_gpu {
namespace {

// One end of a transfer. The first parcel is empty: it says what comes.
class Transfer {
 public:
  Transfer(const Operation& operation, const Board& board)
      : operation_(operation),
        is_send_(operation.kind == Kind::kSend),
        channel_(is_send_ ? board.channel(board.rank(), operation.peer)
                          : board.channel(operation.peer, board.rank())),
        left_(operation.count * SizeOf(operation.type)) {
    if (left_ > 0) {
      at_ = AsDeviceSeesIt(is_send_ ? operation.send : operation.receive);
    }
  }

  int peer() const { return operation_.peer; }
  bool is_send() const { return is_send_; }
  bool done() const { return agreed_ && left_ == 0; }
  const std::string& mistake() const { return mistake_; }

  // As far as the other end allows. Whether anything happened.
  bool Advance() {
    if (!announced_) return Announce();
    if (!agreed_) return Agree();
    return is_send_ ? Send() : Receive();
  }

 private:
  bool Announce() {
    if (is_send_) {
      if (channel_.posted != channel_.consumed) return false;
      channel_.count = operation_.count;
      channel_.type = operation_.type;
      ++channel_.posted;
      expectations_ = channel_.consumed;  // the receiver's answer comes with what it takes next
    } else {
      if (channel_.posted == channel_.consumed) return false;
      channel_.expected_count = operation_.count;
      channel_.expected_type = operation_.type;
      Judge(channel_.count, channel_.type, operation_.count, operation_.type);
      ++channel_.consumed;
      agreed_ = mistake_.empty();
    }
    announced_ = true;
    return true;
  }

  // The sender's: what the receiver made of the announcement.
  bool Agree() {
    if (channel_.consumed == expectations_) return false;
    Judge(operation_.count, operation_.type, channel_.expected_count, channel_.expected_type);
    agreed_ = mistake_.empty();
    return true;
  }

  void Judge(uint64_t sent, int sent_type, uint64_t expected, int expected_type) {
    if (sent == expected && sent_type == expected_type) return;
    mistake_ = "what is sent is not what is received: ncclSend of " + std::to_string(sent) + " " +
               NameOf(static_cast<ncclDataType_t>(sent_type)) + ", ncclRecv of " +
               std::to_string(expected) + " " + NameOf(static_cast<ncclDataType_t>(expected_type));
  }

  bool Send() {
    if (channel_.posted != channel_.consumed) return false;
    const size_t bytes = std::min(left_, kParcelBytes);
    memcpy(channel_.data, at_, bytes);
    Step(bytes);
    ++channel_.posted;
    return true;
  }

  bool Receive() {
    if (channel_.posted == channel_.consumed) return false;
    const size_t bytes = std::min(left_, kParcelBytes);
    memcpy(at_, channel_.data, bytes);
    Step(bytes);
    ++channel_.consumed;
    return true;
  }

  void Step(size_t bytes) {
    at_ += bytes;
    left_ -= bytes;
  }

  const Operation operation_;
  const bool is_send_;
  Channel& channel_;
  char* at_ = nullptr;
  size_t left_ = 0;
  uint64_t expectations_ = 0;
  bool announced_ = false;
  bool agreed_ = false;
  std::string mistake_;
};

using Transfers = std::vector<std::unique_ptr<Transfer>>;

// The first that is not done of each peer and direction.
bool AdvanceAll(const Transfers& transfers) {
  bool moved = false;
  for (size_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = *transfers[i];
    const auto goes_first = [&transfer](const std::unique_ptr<Transfer>& other) {
      return !other->done() && other->peer() == transfer.peer() &&
             other->is_send() == transfer.is_send();
    };
    const auto begin = transfers.begin();
    if (transfer.done() || std::any_of(begin, begin + static_cast<ptrdiff_t>(i), goes_first)) {
      continue;
    }
    while (!transfer.done() && transfer.mistake().empty() && transfer.Advance()) moved = true;
  }
  return moved;
}

}  // namespace

CollectiveResult RunTransfers(const std::vector<Operation>& operations, const Board& board) {
  Transfers transfers;
  std::vector<int> peers;
  for (const Operation& operation : operations) {
    transfers.push_back(std::make_unique<Transfer>(operation, board));
    peers.push_back(operation.peer);
  }
  CollectiveResult result;
  const auto all_done = [&] {
    return std::all_of(transfers.begin(), transfers.end(),
                       [](const std::unique_ptr<Transfer>& transfer) { return transfer->done(); });
  };
  while (!all_done()) {
    result.failure = board.Wait([&] { return AdvanceAll(transfers); }, peers);
    for (const auto& transfer : transfers) {
      if (result.mistake.empty()) result.mistake = transfer->mistake();
    }
    if (!result.ok()) return result;
  }
  return result;
}

}  // namespace cadre::pretend_gpu

#endif  // CADRE_HAVE_NCCL_HEADERS
