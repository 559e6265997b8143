// UTF-8 (RFC 3629), which Protobuf demands of every string that it carries. Stateless; any thread.
#ifndef CADRE_BASE_UTF8_H_
#define CADRE_BASE_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// Bytes of the character that `text`, which is not empty, begins with; 0: it begins with none.
size_t Utf8CharacterSize(absl::string_view text);

bool IsUtf8(absl::string_view text);

// `text` with U+FFFD in place of each byte that belongs to no character.
std::string ReplaceInvalidUtf8(absl::string_view text);

}  // namespace cadre

#endif  // CADRE_BASE_UTF8_H_
