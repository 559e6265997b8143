#include "agent/torch_store/torch_keys.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rpc/torch_protocol.h"

namespace cadre::agent {
namespace {

// The overhead of a key, a queued value or a wait for a key, beside its text.
constexpr size_t kEntryBytes = 96;

// Answers to CHECK, WAIT, BARRIER and CANCEL_WAIT.
constexpr uint8_t kReady = 0, kNotReady = 1, kStopWaiting = 0, kWaitCancelled = 1;

}  // namespace

TorchKeys::~TorchKeys() {
  while (!waits_.empty()) EndWait(waits_.begin()->first);
  for (const auto& [key, value] : keys_) budget_->Give(key.size() + kEntryBytes);
  for (const auto& [key, queue] : queues_) {
    budget_->Give(key.size() + queue.size() * kEntryBytes);
  }
}

absl::Status TorchKeys::Execute(uint64_t connection, TorchRequest request) {
  switch (request.op) {
    case TorchOp::kPing:
      answer_(connection, rpc::LittleEndian32(static_cast<uint32_t>(request.number)), nullptr);
      return absl::OkStatus();
    case TorchOp::kSet:
      return Set(request.keys[0], std::move(request.values[0]));
    case TorchOp::kCompareSet:
      return CompareSet(connection, std::move(request));
    case TorchOp::kGet:
    case TorchOp::kMultiGet:
      for (const std::string& key : request.keys) AnswerText(connection, ValueOf(key));
      return absl::OkStatus();
    case TorchOp::kAdd:
      return Add(connection, request);
    case TorchOp::kCheck: {
      bool ready = true;
      for (const std::string& key : request.keys) ready = ready && Exists(key);
      AnswerByte(connection, ready ? kReady : kNotReady);
      return absl::OkStatus();
    }
    case TorchOp::kWait:
      return BeginWait(connection, std::move(request.keys), false);
    case TorchOp::kGetNumKeys:
      AnswerNumber(connection, static_cast<int64_t>(keys_.size()));
      return absl::OkStatus();
    case TorchOp::kDeleteKey: {
      const bool there = keys_.erase(request.keys[0]) != 0;
      if (there) budget_->Give(request.keys[0].size() + kEntryBytes);
      AnswerNumber(connection, there ? 1 : 0);
      return absl::OkStatus();
    }
    case TorchOp::kAppend:
      return Append(std::move(request));
    case TorchOp::kMultiSet:
      return MultiSet(std::move(request));
    case TorchOp::kCancelWait:
      Forget(connection);
      AnswerByte(connection, kWaitCancelled);
      return absl::OkStatus();
    case TorchOp::kQueuePush:
      return Push(std::move(request));
    case TorchOp::kQueuePop:
      Pop(connection, request.keys[0]);
      return absl::OkStatus();
    case TorchOp::kQueueLen: {
      const auto queue = queues_.find(request.keys[0]);
      AnswerNumber(connection, queue == queues_.end() ? 0 : queue->second.size());
      return absl::OkStatus();
    }
    case TorchOp::kListKeys:
      ListKeys(connection);
      return absl::OkStatus();
    case TorchOp::kBarrier:
      return Barrier(connection, std::move(request));
    case TorchOp::kValidate:
      break;
  }
  return absl::InvalidArgumentError(
      "the client sent VALIDATE again, which is only allowed as its first message");
}

absl::Status TorchKeys::Set(const std::string& key, std::string value) {
  const auto found = keys_.find(key);
  const size_t more = found == keys_.end() ? key.size() + kEntryBytes : 0;
  RETURN_IF_ERROR(CheckRoom(more + value.size()));
  budget_->Take(more);
  auto text = std::make_shared<CountedText>(std::move(value), budget_);
  if (found == keys_.end()) {
    keys_.emplace(key, std::move(text));
  } else {
    found->second = std::move(text);
  }
  Wake(key, false);
  return absl::OkStatus();
}

absl::Status TorchKeys::CompareSet(uint64_t connection, TorchRequest request) {
  const std::string& key = request.keys[0];
  std::string& expected = request.values[0];
  const auto found = keys_.find(key);
  const bool equal = found == keys_.end() ? expected.empty() : found->second->text() == expected;
  if (equal) {
    RETURN_IF_ERROR(Set(key, std::move(request.values[1])));
    AnswerText(connection, keys_.at(key));
  } else if (found != keys_.end()) {
    AnswerText(connection, found->second);
  } else {
    // PyTorch's own server answers this if the key is missing.
    AnswerText(connection, std::make_shared<CountedText>(std::move(expected), budget_));
  }
  return absl::OkStatus();
}

absl::Status TorchKeys::Increase(const std::string& key, int64_t delta, int64_t* sum) {
  const SharedText value = ValueOf(key);
  *sum = 0;
  if (value != nullptr && !absl::SimpleAtoi(value->text(), sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ADD to key ", Quoted(key), " failed: its value is not a number"));
  }
  if (__builtin_add_overflow(*sum, delta, sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ADD to key ", Quoted(key), " failed: the sum exceeds 64 bits"));
  }
  return absl::OkStatus();
}

absl::Status TorchKeys::Add(uint64_t connection, const TorchRequest& request) {
  int64_t sum = 0;
  RETURN_IF_ERROR(Increase(request.keys[0], request.number, &sum));
  RETURN_IF_ERROR(Set(request.keys[0], absl::StrCat(sum)));
  AnswerNumber(connection, sum);
  return absl::OkStatus();
}

absl::Status TorchKeys::Append(TorchRequest request) {
  const std::string& key = request.keys[0];
  const auto found = keys_.find(key);
  if (found == keys_.end()) return Set(key, std::move(request.values[0]));
  std::shared_ptr<CountedText>& value = found->second;
  // Copied if an answer that is being sent shares it.
  const bool shared = value.use_count() > 1;
  RETURN_IF_ERROR(CheckRoom(request.values[0].size() + (shared ? value->text().size() : 0)));
  if (shared) value = std::make_shared<CountedText>(value->text(), budget_);
  value->Append(request.values[0]);
  return absl::OkStatus();
}

absl::Status TorchKeys::MultiSet(TorchRequest request) {
  for (size_t i = 0; i < request.keys.size(); ++i) {
    RETURN_IF_ERROR(Set(request.keys[i], std::move(request.values[i])));
  }
  return absl::OkStatus();
}

absl::Status TorchKeys::Push(TorchRequest request) {
  const std::string& key = request.keys[0];
  const size_t more = kEntryBytes + (queues_.contains(key) ? 0 : key.size());
  RETURN_IF_ERROR(CheckRoom(more + request.values[0].size()));
  budget_->Take(more);
  queues_[key].push_back(std::make_shared<CountedText>(std::move(request.values[0]), budget_));
  Wake(key, true);
  return absl::OkStatus();
}

void TorchKeys::Pop(uint64_t connection, const std::string& key) {
  const auto found = queues_.find(key);
  if (found == queues_.end()) return AnswerNumber(connection, 0);
  std::deque<SharedText>& queue = found->second;
  AnswerNumber(connection, static_cast<int64_t>(queue.size()));
  AnswerText(connection, queue.front());
  queue.pop_front();
  budget_->Give(kEntryBytes + (queue.empty() ? key.size() : 0));
  if (queue.empty()) queues_.erase(found);
}

absl::Status TorchKeys::Barrier(uint64_t connection, TorchRequest request) {
  const std::string key = request.keys[0];
  int64_t arrived = 0;
  RETURN_IF_ERROR(Increase(key, 1, &arrived));
  if (arrived < request.number) RETURN_IF_ERROR(BeginWait(connection, {key}, true));
  RETURN_IF_ERROR(Set(key, absl::StrCat(arrived)));
  if (arrived < request.number) return absl::OkStatus();
  EndBarrier(key);
  AnswerByte(connection, kStopWaiting);
  return absl::OkStatus();
}

absl::Status TorchKeys::BeginWait(uint64_t connection, std::vector<std::string> keys,
                                  bool barrier) {
  if (Waits(connection)) {
    return absl::InvalidArgumentError(
        "the client began another wait while it waits; only CANCEL_WAIT is allowed then");
  }
  Wait wait;
  wait.connection = connection;
  wait.barrier = barrier;
  for (std::string& key : keys) {
    if (!barrier && Exists(key)) continue;
    // Counted twice, for the wait and the index.
    const size_t bytes = 2 * key.size() + kEntryBytes;
    if (wait.keys.insert(std::move(key)).second) wait.bytes += bytes;
  }
  if (wait.keys.empty()) {
    AnswerByte(connection, kStopWaiting);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckRoom(wait.bytes));
  budget_->Take(wait.bytes);
  const uint64_t ticket = ++last_ticket_;
  for (const std::string& key : wait.keys) {
    (barrier ? barriers_ : waits_by_key_)[key].insert(ticket);
  }
  waits_by_connection_[connection] = ticket;
  waits_.emplace(ticket, std::move(wait));
  return absl::OkStatus();
}

void TorchKeys::Wake(const std::string& key, bool only_one) {
  const auto found = waits_by_key_.find(key);
  if (found == waits_by_key_.end()) return;
  const Tickets tickets = found->second;
  for (const uint64_t ticket : tickets) {
    Wait& wait = waits_.at(ticket);
    if (wait.keys.size() == 1) {
      AnswerByte(wait.connection, kStopWaiting);
      EndWait(ticket);
      // One value in a queue lets one client continue; the others wait for the next.
      if (only_one) return;
      continue;
    }
    // Its bytes are returned to the budget when the wait ends.
    wait.keys.erase(key);
    const auto index = waits_by_key_.find(key);
    index->second.erase(ticket);
    if (index->second.empty()) waits_by_key_.erase(index);
  }
}

void TorchKeys::EndBarrier(const std::string& key) {
  const auto found = barriers_.find(key);
  if (found == barriers_.end()) return;
  const Tickets tickets = found->second;
  for (const uint64_t ticket : tickets) {
    AnswerByte(waits_.at(ticket).connection, kStopWaiting);
    EndWait(ticket);
  }
}

void TorchKeys::EndWait(uint64_t ticket) {
  const auto found = waits_.find(ticket);
  const Wait& wait = found->second;
  auto& index = wait.barrier ? barriers_ : waits_by_key_;
  for (const std::string& key : wait.keys) {
    const auto tickets = index.find(key);
    CADRE_CHECK(tickets != index.end(), "no client waits for key ", Quoted(key));
    tickets->second.erase(ticket);
    if (tickets->second.empty()) index.erase(tickets);
  }
  budget_->Give(wait.bytes);
  waits_by_connection_.erase(wait.connection);
  waits_.erase(found);
}

void TorchKeys::Forget(uint64_t connection) {
  const auto found = waits_by_connection_.find(connection);
  if (found != waits_by_connection_.end()) EndWait(found->second);
}

void TorchKeys::ListKeys(uint64_t connection) {
  AnswerNumber(connection, static_cast<int64_t>(keys_.size()));
  for (const auto& [key, value] : keys_) {
    answer_(connection, absl::StrCat(rpc::LittleEndian64(key.size()), key), nullptr);
  }
}

bool TorchKeys::Exists(const std::string& key) const {
  return keys_.contains(key) || queues_.contains(key);
}

SharedText TorchKeys::ValueOf(const std::string& key) const {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return nullptr;
  return found->second;
}

absl::Status TorchKeys::CheckRoom(size_t bytes) const {
  if (budget_->Fits(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the store holds ", budget_->limit() >> 20, " MiB already, which is its limit"));
}

void TorchKeys::AnswerByte(uint64_t connection, uint8_t byte) {
  const char text = static_cast<char>(byte);
  answer_(connection, absl::string_view(&text, 1), nullptr);
}

void TorchKeys::AnswerNumber(uint64_t connection, int64_t number) {
  answer_(connection, rpc::LittleEndian64(static_cast<uint64_t>(number)), nullptr);
}

void TorchKeys::AnswerText(uint64_t connection, const SharedText& value) {
  const size_t size = value == nullptr ? 0 : value->text().size();
  answer_(connection, rpc::LittleEndian64(size), size == 0 ? nullptr : value);
}

}  // namespace cadre::agent
