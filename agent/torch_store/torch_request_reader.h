// Reads the requests of one client of PyTorch's TCPStore out of the pieces in which they come.
//
// Numbers are little endian. A request is an opcode and, without any length of its own, what that
// opcode takes; a text is a length of 8 bytes and as many bytes. Pure; one thread.
#ifndef CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_READER_H_
#define CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/torch_store/torch_request.h"

namespace cadre::agent {

class TorchRequestReader {
 public:
  // Takes bytes off the front, up to the end of a request at most. True: it is in `request`. False:
  // all bytes are taken, and the request goes on with the next ones. INVALID_ARGUMENT: this is not
  // the protocol, or too large; nothing that follows has a meaning.
  absl::StatusOr<bool> Read(absl::string_view* bytes, TorchRequest* request);

  // Of the request that is not complete.
  size_t held_bytes() const { return held_bytes_; }

 private:
  absl::Status Begin(uint8_t opcode);
  // Whether the field that is due is complete.
  absl::StatusOr<bool> ReadField(absl::string_view* bytes);
  absl::StatusOr<bool> ReadText(absl::string_view* bytes, bool is_key);
  // Whether that many bytes are together; they are in number_ then.
  bool ReadNumber(absl::string_view* bytes, size_t size);
  absl::Status Hold(size_t bytes);
  void NextField();

  TorchRequest request_;
  // The fields that are due, as kLayouts has them; null: an opcode is.
  const char* field_ = nullptr;
  // Where the fields begin that a count is the number of, and how often they are still due.
  const char* repeated_ = nullptr;
  uint64_t repeats_ = 0;
  // Of a number that is read.
  uint64_t number_ = 0;
  size_t number_bytes_ = 0;
  // Of a text that is read.
  bool in_text_ = false;
  uint64_t text_left_ = 0;
  size_t held_bytes_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_READER_H_
