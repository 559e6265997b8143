#include "base/bearer_token.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/keyed_digest.h"
#include "base/token.h"
#include "base/tokens/server_key.h"

namespace cadre {
namespace {

using Kind = Bearer::Kind;

constexpr size_t kUserNameBytesMax = 64;

// Appends the proof to the claim.
std::string Signed(absl::string_view secret, absl::string_view said) {
  return absl::StrCat(said, ":", absl::BytesToHexString(KeyedDigest(secret, said)));
}

// The same for the tokens of this version, whose claim also names the server's key.
std::string Made(absl::string_view secret, absl::string_view said) {
  const std::string key = ServerKeyOf(secret);
  return Signed(secret, key.empty() ? said : absl::StrCat(said, ":", key));
}

std::string For(uint64_t server_id) { return absl::StrCat(absl::Hex(server_id, absl::kZeroPad16)); }

std::string Until(absl::Time ends) { return absl::StrCat(absl::ToUnixSeconds(ends)); }

bool ReadFor(absl::string_view text, uint64_t* server_id) {
  return text.size() == 16 && absl::SimpleHexAtoi(text, server_id);
}

bool ReadUntil(absl::string_view text, absl::Time* ends) {
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(text, &seconds)) return false;
  *ends = absl::FromUnixSeconds(seconds);
  return true;
}

bool IsFingerprint(absl::string_view text) {
  return text.size() == kFingerprintDigits &&
         std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
}

// Parses the token's claim, which is not verified yet.
std::optional<Bearer> Claim(absl::string_view token) {
  std::vector<absl::string_view> fields = absl::StrSplit(token, ':');
  Bearer bearer;
  // The key is the last field before the proof; a token made from a secret that a user chose has
  // none.
  if (fields.size() > 1 && IsFingerprint(*(fields.end() - 2))) {
    bearer.server_key = std::string(*(fields.end() - 2));
    fields.erase(fields.end() - 2);
  }
  if (fields.size() == 5 && fields[0] == "user" && IsUserName(fields[1]) &&
      ReadFor(fields[2], &bearer.server_id) && ReadUntil(fields[3], &bearer.ends)) {
    bearer.kind = Kind::kUser;
    bearer.user = std::string(fields[1]);
    return bearer;
  }
  if (fields.size() == 4 && fields[0] == "read" && ReadFor(fields[1], &bearer.server_id) &&
      ReadUntil(fields[2], &bearer.ends)) {
    bearer.kind = Kind::kReader;
    return bearer;
  }
  if (fields.size() == 5 && fields[0] == "part" && absl::SimpleAtoi(fields[1], &bearer.part) &&
      ReadFor(fields[3], &bearer.server_id)) {
    bearer.kind = Kind::kPart;
    bearer.job = std::string(fields[2]);
    return bearer;
  }
  return std::nullopt;
}

// Names the token, for messages.
std::string Name(const Bearer& bearer) {
  if (bearer.kind == Kind::kUser) return absl::StrCat("the token of user ", bearer.user);
  if (bearer.kind == Kind::kReader) return "the read-only token";
  return absl::StrCat("the token of part ", bearer.part, " of job ", bearer.job);
}

std::string HowToRenew(const Bearer& bearer) {
  if (bearer.kind == Kind::kPart) return "the agent of its node gives its launchers new ones";
  return absl::StrCat(
      "make a new one where the cluster's token is: 'cadre token new FILE --force ",
      bearer.kind == Kind::kUser ? absl::StrCat("--user ", bearer.user) : "--read-only",
      " --token-file cluster.token'");
}

}  // namespace

bool IsUserName(absl::string_view user) {
  return !user.empty() && user.size() <= kUserNameBytesMax &&
         std::all_of(user.begin(), user.end(),
                     [](char c) { return absl::ascii_isalnum(c) || absl::StrContains(".-_@", c); });
}

std::string UserToken(absl::string_view secret, uint64_t server_id, absl::string_view user,
                      absl::Time ends) {
  return Made(secret, absl::StrCat("user:", user, ":", For(server_id), ":", Until(ends)));
}

std::string ReadToken(absl::string_view secret, uint64_t server_id, absl::Time ends) {
  return Made(secret, absl::StrCat("read:", For(server_id), ":", Until(ends)));
}

std::string PartToken(absl::string_view secret, uint64_t server_id, uint64_t part,
                      absl::string_view job) {
  return Made(secret, absl::StrCat("part:", part, ":", job, ":", For(server_id)));
}

std::optional<Bearer> VerifiedBearer(absl::string_view secret, absl::string_view token) {
  if (EqualConstantTime(token, secret)) return Bearer();
  std::optional<Bearer> claimed = Claim(token);
  if (!claimed.has_value()) return std::nullopt;
  const absl::string_view said = token.substr(0, token.rfind(':'));
  if (!EqualConstantTime(token, Signed(secret, said))) return std::nullopt;
  return claimed;
}

std::string ServerKeyInToken(absl::string_view token) {
  const std::optional<Bearer> claimed = Claim(token);
  return claimed.has_value() ? claimed->server_key : ServerKeyOf(token);
}

absl::Status CheckTokenServer(const Bearer& bearer, uint64_t server_id) {
  if (bearer.kind == Kind::kAdministrator || bearer.server_id == server_id) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(absl::StrCat(
      Name(bearer), " was made for another server, or before this one lost its state; ",
      HowToRenew(bearer)));
}

absl::Status CheckTokenExpiry(const Bearer& bearer, absl::Time now) {
  if (now < bearer.ends) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat(Name(bearer), " expired at ",
                   absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", bearer.ends, absl::UTCTimeZone()),
                   "; ", HowToRenew(bearer)));
}

}  // namespace cadre
