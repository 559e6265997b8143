#include "agent/torch_store/torch_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

// The fields after each opcode: u a number of 4 bytes, i one of 8, k a key, v a value; n is how
// often the fields after it are repeated.
constexpr const char* kLayouts[] = {
    "u",    // VALIDATE
    "kv",   // SET
    "kvv",  // COMPARE_SET
    "k",    // GET
    "ki",   // ADD
    "nk",   // CHECK
    "nk",   // WAIT
    "",     // GETNUMKEYS
    "k",    // DELETE_KEY
    "kv",   // APPEND
    "nk",   // MULTI_GET
    "nkv",  // MULTI_SET
    "",     // CANCEL_WAIT
    "u",    // PING
    "kv",   // QUEUE_PUSH
    "k",    // QUEUE_POP
    "k",    // QUEUE_LEN
    "",     // LIST_KEYS
    "ki",   // BARRIER
};

}  // namespace

absl::StatusOr<bool> TorchRequestReader::Read(absl::string_view* bytes, TorchRequest* request) {
  if (field_ == nullptr) {
    if (bytes->empty()) return false;
    RETURN_IF_ERROR(Begin(static_cast<uint8_t>(bytes->front())));
    bytes->remove_prefix(1);
  }
  while (*field_ != '\0') {
    ASSIGN_OR_RETURN(const bool complete, ReadField(bytes));
    if (!complete) return false;
    NextField();
  }
  field_ = nullptr;
  held_bytes_ = 0;
  *request = std::exchange(request_, {});
  return true;
}

absl::Status TorchRequestReader::Begin(uint8_t opcode) {
  if (opcode >= std::size(kLayouts)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "opcode ", static_cast<int>(opcode), " is unknown in the protocol of PyTorch's TCPStore"));
  }
  request_.op = static_cast<TorchOp>(opcode);
  field_ = kLayouts[opcode];
  repeated_ = nullptr;
  return absl::OkStatus();
}

void TorchRequestReader::NextField() {
  ++field_;
  if (repeated_ != nullptr && *field_ == '\0' && --repeats_ > 0) field_ = repeated_;
}

absl::StatusOr<bool> TorchRequestReader::ReadField(absl::string_view* bytes) {
  switch (*field_) {
    case 'k':
      return ReadText(bytes, true);
    case 'v':
      return ReadText(bytes, false);
    case 'u':
      if (!ReadNumber(bytes, 4)) return false;
      request_.number = static_cast<int64_t>(number_);
      return true;
    case 'i':
      if (!ReadNumber(bytes, 8)) return false;
      request_.number = static_cast<int64_t>(number_);
      return true;
    default:
      break;
  }
  if (!ReadNumber(bytes, 8)) return false;
  if (number_ > kMaxTorchKeysPerCall) {
    return absl::InvalidArgumentError(absl::StrCat("the client named ", number_,
                                                   " keys in one request; at most ",
                                                   kMaxTorchKeysPerCall, " are allowed"));
  }
  repeated_ = field_ + 1;
  repeats_ = number_;
  // Zero repeats: skip the repeated fields, except for the step that NextField() makes.
  while (repeats_ == 0 && field_[1] != '\0') ++field_;
  if (repeats_ == 0) repeated_ = nullptr;
  return true;
}

absl::StatusOr<bool> TorchRequestReader::ReadText(absl::string_view* bytes, bool is_key) {
  std::vector<std::string>& texts = is_key ? request_.keys : request_.values;
  if (!in_text_) {
    if (!ReadNumber(bytes, 8)) return false;
    const size_t limit = is_key ? kMaxTorchKeyBytes : kMaxTorchValueBytes;
    if (number_ > limit) {
      return absl::InvalidArgumentError(absl::StrCat("the client sent a ", is_key ? "key" : "value",
                                                     " of ", number_, " bytes; at most ", limit,
                                                     " are allowed"));
    }
    in_text_ = true;
    text_left_ = number_;
    texts.emplace_back();
    RETURN_IF_ERROR(Hold(sizeof(std::string)));
  }
  const size_t size = std::min<uint64_t>(text_left_, bytes->size());
  RETURN_IF_ERROR(Hold(size));
  texts.back().append(bytes->data(), size);
  bytes->remove_prefix(size);
  text_left_ -= size;
  in_text_ = text_left_ > 0;
  return !in_text_;
}

bool TorchRequestReader::ReadNumber(absl::string_view* bytes, size_t size) {
  if (number_bytes_ == 0) number_ = 0;
  while (number_bytes_ < size && !bytes->empty()) {
    number_ |= uint64_t{static_cast<uint8_t>(bytes->front())} << (8 * number_bytes_++);
    bytes->remove_prefix(1);
  }
  if (number_bytes_ < size) return false;
  number_bytes_ = 0;
  return true;
}

absl::Status TorchRequestReader::Hold(size_t bytes) {
  held_bytes_ += bytes;
  if (held_bytes_ <= kMaxTorchRequestBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the client sent a request of more than ",
                                                 kMaxTorchRequestBytes >> 20,
                                                 " MiB, which is the limit"));
}

}  // namespace cadre::agent
