// Plain structs as the content of frames. A protocol is a std::variant of structs, each of which
// has one list of its fields for both directions:
//
//   struct Stop { uint64_t generation = 0; uint32_t grace_ms = 0; };
//   template <typename Io>
//   void Fields(Io& io, Stop& m) { io(m.generation, m.grace_ms); }   // in the namespace of Stop
//
// A message is its number in the variant, from 1, in one byte, and the fields in order: integers in
// little endian, strings and lists with a u32 length or count in front. So alternatives and fields
// keep their order once two versions of a program talk to each other.
#ifndef CADRE_RPC_FRAMES_MESSAGES_H_
#define CADRE_RPC_FRAMES_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rpc/frames/frame_reader.h"

namespace cadre::frames {

class FieldWriter {
 public:
  explicit FieldWriter(std::string* out) : out_(*out) {}

  template <typename... T>
  void operator()(const T&... fields) {
    (Field(fields), ...);
  }

 private:
  template <typename T>
  std::enable_if_t<std::is_integral_v<T>> Field(T value) {
    const auto bits = static_cast<uint64_t>(value);
    char bytes[sizeof(T)];
    for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<char>(bits >> (8 * i));
    out_.append(bytes, sizeof(T));
  }
  template <typename T>
  std::enable_if_t<std::is_enum_v<T>> Field(T value) {
    Field(static_cast<std::underlying_type_t<T>>(value));
  }
  void Field(const std::string& value) {
    Field(static_cast<uint32_t>(value.size()));
    out_.append(value);
  }
  template <typename T>
  void Field(const std::vector<T>& values) {
    Field(static_cast<uint32_t>(values.size()));
    for (const T& value : values) Field(value);
  }

  std::string& out_;
};

class FieldReader {
 public:
  explicit FieldReader(absl::string_view in) : in_(in) {}

  template <typename... T>
  void operator()(T&... fields) {
    (Field(fields), ...);
  }
  // Whether every field was there and nothing is left over.
  bool Finished() const { return ok_ && in_.empty(); }

 private:
  template <typename T>
  std::enable_if_t<std::is_integral_v<T>> Field(T& value) {
    if (in_.size() < sizeof(T)) ok_ = false;
    if (!ok_) return;
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= uint64_t{static_cast<unsigned char>(in_[i])} << (8 * i);
    }
    value = static_cast<T>(bits);
    in_.remove_prefix(sizeof(T));
  }
  // Whoever uses the value must reckon with one that has no name.
  template <typename T>
  std::enable_if_t<std::is_enum_v<T>> Field(T& value) {
    std::underlying_type_t<T> number{};
    Field(number);
    value = static_cast<T>(number);
  }
  void Field(std::string& value) {
    uint32_t size = 0;
    Field(size);
    if (size > in_.size()) ok_ = false;
    if (!ok_) return;
    value.assign(in_.data(), size);
    in_.remove_prefix(size);
  }
  template <typename T>
  void Field(std::vector<T>& values) {
    uint32_t count = 0;
    Field(count);
    // Every element takes four bytes at least, so a lying count cannot make us allocate.
    if (uint64_t{count} * 4 > in_.size()) ok_ = false;
    if (!ok_) return;
    values.resize(count);
    for (T& value : values) Field(value);
  }

  absl::string_view in_;
  bool ok_ = true;
};

// Appends the message as a frame.
template <typename Message>
void AppendMessage(const Message& message, std::string* bytes) {
  const size_t start = bytes->size();
  bytes->append(kLengthBytes, '\0');
  bytes->push_back(static_cast<char>(message.index() + 1));
  FieldWriter writer(bytes);
  // Fields() takes what it may also fill in; the writer only reads.
  std::visit([&](auto& fields) { Fields(writer, fields); }, const_cast<Message&>(message));
  CloseFrame(start, bytes);
}

template <typename Message, size_t index = 0>
bool ParseAlternative(size_t which, absl::string_view fields, Message* message) {
  if constexpr (index < std::variant_size_v<Message>) {
    if (which != index) return ParseAlternative<Message, index + 1>(which, fields, message);
    FieldReader reader(fields);
    Fields(reader, message->template emplace<index>());
    return reader.Finished();
  }
  return false;
}

// INVALID_ARGUMENT: this is not a message of the protocol.
template <typename Message>
absl::StatusOr<Message> ParseMessage(absl::string_view content) {
  const size_t kind = content.empty() ? 0 : static_cast<unsigned char>(content.front());
  Message message;
  if (kind == 0 || !ParseAlternative(kind - 1, content.substr(1), &message)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", content.size(), " bytes and kind ", kind,
                     ": the kind is unknown or its fields do not add up"));
  }
  return message;
}

}  // namespace cadre::frames

#endif  // CADRE_RPC_FRAMES_MESSAGES_H_
