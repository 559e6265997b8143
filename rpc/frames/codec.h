// Encodes plain structs as the content of frames. Each struct has one list of its fields, in its
// namespace, for both directions:
//
//   struct Stop { uint64_t generation = 0; uint32_t grace_ms = 0; };
//   template <typename Io>
//   void Fields(Io& io, Stop& m) { io(m.generation, m.grace_ms); }
//
// A message is a struct or a std::variant of structs. Fields are encoded in order: integers and
// enums in little endian, strings and lists with a u32 length or count in front, a variant as its
// number (from 1) in one byte followed by the fields of that alternative. So the order of
// alternatives and fields must never change, and new ones are added at the end. Fields() may omit
// fields that the other side does not know: io.version() is the version given to AppendMessage or
// ParseMessage.
#ifndef CADRE_RPC_FRAMES_CODEC_H_
#define CADRE_RPC_FRAMES_CODEC_H_

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
  explicit FieldWriter(std::string* out, uint32_t version = 0) : out_(*out), version_(version) {}

  uint32_t version() const { return version_; }

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
  template <typename... T>
  void Field(const std::variant<T...>& value) {
    static_assert(sizeof...(T) < 256);
    out_.push_back(static_cast<char>(value.index() + 1));
    std::visit([this](const auto& chosen) { Field(chosen); }, value);
  }
  // Fields() takes a mutable struct, because a FieldReader fills it in; here it is only read.
  template <typename T>
  std::enable_if_t<std::is_class_v<T>> Field(const T& value) {
    Fields(*this, const_cast<T&>(value));
  }

  std::string& out_;
  const uint32_t version_;
};

class FieldReader {
 public:
  explicit FieldReader(absl::string_view in, uint32_t version = 0) : in_(in), version_(version) {}

  uint32_t version() const { return version_; }

  template <typename... T>
  void operator()(T&... fields) {
    (Field(fields), ...);
  }
  // Whether every field was present and no bytes are left over.
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
  // The value may be none of the enum's: its user must handle that.
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
    // Every element takes four bytes at least, so a false count cannot cause a large allocation.
    if (uint64_t{count} * 4 > in_.size()) ok_ = false;
    if (!ok_) return;
    values.resize(count);
    for (T& value : values) Field(value);
  }
  template <typename... T>
  void Field(std::variant<T...>& value) {
    uint8_t kind = 0;
    Field(kind);
    if (kind == 0 || !Choose(kind - 1u, value)) ok_ = false;
  }
  template <size_t index = 0, typename... T>
  bool Choose(size_t which, std::variant<T...>& value) {
    if constexpr (index < sizeof...(T)) {
      if (which != index) return Choose<index + 1>(which, value);
      Field(value.template emplace<index>());
      return true;
    }
    return false;
  }
  template <typename T>
  std::enable_if_t<std::is_class_v<T>> Field(T& value) {
    Fields(*this, value);
  }

  absl::string_view in_;
  const uint32_t version_;
  bool ok_ = true;
};

// Appends the message as a frame. `version` is that of the protocol, if it has several.
template <typename Message>
void AppendMessage(const Message& message, std::string* bytes, uint32_t version = 0) {
  const size_t start = bytes->size();
  bytes->append(kLengthBytes, '\0');
  FieldWriter writer(bytes, version);
  writer(message);
  CloseFrame(start, bytes);
}

// INVALID_ARGUMENT: the content is not such a message.
template <typename Message>
absl::StatusOr<Message> ParseMessage(absl::string_view content, uint32_t version = 0) {
  Message message;
  FieldReader reader(content, version);
  reader(message);
  if (reader.Finished()) return message;
  return absl::InvalidArgumentError(absl::StrCat(
      "a frame of ", content.size(), " bytes: its kind is unknown or its fields do not add up"));
}

}  // namespace cadre::frames

#endif  // CADRE_RPC_FRAMES_CODEC_H_
