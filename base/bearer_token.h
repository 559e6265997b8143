// Tokens that say whose they are. A server's own token is its administrators'. Everyone who has it
// can make tokens of one user, of one part of a job or of those who only look from it: what they
// say, and an HMAC-SHA256 of that with the server's token as the key, so that the server knows them
// without keeping a list. They say for which state of the server they were made, and fit no other
// one: a server that lost its state counts its parts and jobs from 1 again. Pure; thread safe.
#ifndef CADRE_BASE_BEARER_TOKEN_H_
#define CADRE_BASE_BEARER_TOKEN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// A user's token and a read-only one are good for so long, where nothing else is asked for.
inline constexpr absl::Duration kTokenLifetime = absl::Hours(30 * 24);

// The owner of a token.
struct Bearer {
  enum class Kind { kAdministrator, kUser, kPart, kReader };
  Kind kind = Kind::kAdministrator;
  // Of a user.
  std::string user;
  // Of a part.
  uint64_t part = 0;
  std::string job;
  // Of all but an administrator: the state of the server that it is good for. 0: of a part, in the
  // form of Cadre 0.2, which fits every state.
  uint64_t server_id = 0;
  // Likewise, if it names one: the fingerprint of the server's key (server_key.h).
  std::string server_key;
  // Of a user and a reader: until then, in whole seconds. A part's ends with the part.
  absl::Time ends = absl::InfiniteFuture();
};

// 1 to 64 letters, digits, '.', '-', '_' and '@'.
bool IsUserName(absl::string_view user);

// `secret`: the server's own token. `ends` is cut to whole seconds.
//
// "user:alice:<16 hexadecimal digits of the server id>:<seconds since 1970>:<64 digits of the
// server's key>:<64 more digits>". Without the key where the secret makes none.
std::string UserToken(absl::string_view secret, uint64_t server_id, absl::string_view user,
                      absl::Time ends);
// "read:<server id>:<seconds>:<key>:<64 digits>". For who sees what all users see, and changes
// nothing.
std::string ReadToken(absl::string_view secret, uint64_t server_id, absl::Time ends);
// "part:12:mnist:<server id>:<key>:<64 digits>". For the launcher of this part alone. Server id 0:
// "part:12:mnist:<64 digits>", which a server of Cadre 0.2 wants.
std::string PartToken(absl::string_view secret, uint64_t server_id, uint64_t part,
                      absl::string_view job);

// Whether it says that it is a part's in that form; nothing is proved.
bool IsPartTokenBefore(absl::string_view token);

// The token's owner, whether it is still good or not; nullopt: it is none of this server's.
std::optional<Bearer> BearerOf(absl::string_view secret, absl::string_view token);

// The fingerprint of the key of the server that the token is for, the server's own or one made from
// it; empty: it names none. For who has the token, and not for who is shown it: nothing is proved.
std::string ServerKeyNamedBy(absl::string_view token);

// OK, or UNAUTHENTICATED with what is wrong with the token and how one gets another: it is of
// another state of the server than `server_id`.
absl::Status CheckServerOf(const Bearer& bearer, uint64_t server_id);
// Likewise: it has ended.
absl::Status CheckEndOf(const Bearer& bearer, absl::Time now);

}  // namespace cadre

#endif  // CADRE_BASE_BEARER_TOKEN_H_
