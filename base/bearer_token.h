// Tokens that say whose they are. A server's own token is its administrators'. Everyone who has it
// can make tokens of one user or of one part of a job from it: what they say, and an HMAC-SHA256 of
// that with the server's token as the key, so that the server knows them without keeping a list.
// Pure; thread safe.
#ifndef CADRE_BASE_BEARER_TOKEN_H_
#define CADRE_BASE_BEARER_TOKEN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// The owner of a token.
struct Bearer {
  enum class Kind { kAdministrator, kUser, kPart };
  Kind kind = Kind::kAdministrator;
  // Of a user.
  std::string user;
  // Of a part.
  uint64_t part = 0;
  std::string job;
};

// 1 to 64 letters, digits, '.', '-', '_' and '@'.
bool IsUserName(absl::string_view user);

// `secret`: the server's own token. "user:alice:<64 hexadecimal digits>".
std::string UserToken(absl::string_view secret, absl::string_view user);
// "part:12:mnist:<64 hexadecimal digits>". For the launcher of this part alone.
std::string PartToken(absl::string_view secret, uint64_t part, absl::string_view job);

// The token's owner; nullopt: it is none of this server's.
std::optional<Bearer> BearerOf(absl::string_view secret, absl::string_view token);

}  // namespace cadre

#endif  // CADRE_BASE_BEARER_TOKEN_H_
