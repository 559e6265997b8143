// Tokens that name their owner. The server's own token belongs to its administrators. Everybody who
// holds it can derive tokens for one user, for one part of a job (its allocation on one node) or
// for read-only access: a claim, and an HMAC-SHA256 of the claim with the server's token as the
// key, so that the server recognizes them without keeping a list. A token names the state of the
// server for which it was made and is refused by any other, because a server that lost its state
// counts its parts and jobs from 1 again. Pure; thread safe.
#ifndef CADRE_BASE_BEARER_TOKEN_H_
#define CADRE_BASE_BEARER_TOKEN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// How long users' and read-only tokens are valid unless another lifetime is asked for.
inline constexpr absl::Duration kTokenLifetime = absl::Hours(30 * 24);

// The owner of a token.
struct Bearer {
  enum class Kind { kAdministrator, kUser, kPart, kReader };
  Kind kind = Kind::kAdministrator;
  // Set for kUser.
  std::string user;
  // `part` and `job` are set for kPart.
  uint64_t part = 0;
  std::string job;
  // The state of the server for which the token is valid; not set for an administrator.
  uint64_t server_id = 0;
  // The fingerprint of the server's key (server_key.h), if the token names one; not set for an
  // administrator.
  std::string server_key;
  // Users' and read-only tokens expire then, in whole seconds. A part's token expires with the
  // part.
  absl::Time ends = absl::InfiniteFuture();
};

// A name has 1 to 64 letters, digits, '.', '-', '_' and '@'.
bool IsUserName(absl::string_view user);

// `secret` is the server's own token. `ends` is cut to whole seconds.
//
// Returns "user:alice:<16 hexadecimal digits of the server id>:<seconds since 1970>:<64 digits of
// the server's key>:<64 more digits>", without the key if none can be made from the secret.
std::string UserToken(absl::string_view secret, uint64_t server_id, absl::string_view user,
                      absl::Time ends);
// "read:<server id>:<seconds>:<key>:<64 digits>". Its holder sees what every user sees, and cannot
// change anything.
std::string ReadToken(absl::string_view secret, uint64_t server_id, absl::Time ends);
// "part:12:mnist:<server id>:<key>:<64 digits>". Only the launcher of this part gets it.
std::string PartToken(absl::string_view secret, uint64_t server_id, uint64_t part,
                      absl::string_view job);

// The owner of the token, even if the token has expired; nullopt if this server did not sign it.
std::optional<Bearer> VerifiedBearer(absl::string_view secret, absl::string_view token);

// The fingerprint of the key of the server for which the token was made, whether it is the server's
// own token or one derived from it. Empty: it names none. It is for the holder of a token: it does
// not verify the token, so a server must not rely on it.
std::string ServerKeyInToken(absl::string_view token);

// OK, or UNAUTHENTICATED if the token was made for another state of the server than `server_id`.
// The message says what is wrong and how one gets another token.
absl::Status CheckTokenServer(const Bearer& bearer, uint64_t server_id);
// Likewise UNAUTHENTICATED if the token has expired.
absl::Status CheckTokenExpiry(const Bearer& bearer, absl::Time now);

}  // namespace cadre

#endif  // CADRE_BASE_BEARER_TOKEN_H_
