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

namespace cadre {
namespace {

constexpr size_t kUserNameBytesMax = 64;

// The claim, and its proof.
std::string Signed(absl::string_view secret, absl::string_view said) {
  return absl::StrCat(said, ":", absl::BytesToHexString(KeyedDigest(secret, said)));
}

}  // namespace

bool IsUserName(absl::string_view user) {
  return !user.empty() && user.size() <= kUserNameBytesMax &&
         std::all_of(user.begin(), user.end(),
                     [](char c) { return absl::ascii_isalnum(c) || absl::StrContains(".-_@", c); });
}

std::string UserToken(absl::string_view secret, absl::string_view user) {
  return Signed(secret, absl::StrCat("user:", user));
}

std::string PartToken(absl::string_view secret, uint64_t part, absl::string_view job) {
  return Signed(secret, absl::StrCat("part:", part, ":", job));
}

std::optional<Bearer> BearerOf(absl::string_view secret, absl::string_view token) {
  Bearer bearer;
  if (EqualConstantTime(token, secret)) return bearer;
  const std::vector<absl::string_view> fields = absl::StrSplit(token, ':');
  std::string good;
  if (fields.size() == 3 && fields[0] == "user" && IsUserName(fields[1])) {
    bearer.kind = Bearer::Kind::kUser;
    bearer.user = std::string(fields[1]);
    good = UserToken(secret, bearer.user);
  } else if (fields.size() == 4 && fields[0] == "part" &&
             absl::SimpleAtoi(fields[1], &bearer.part)) {
    bearer.kind = Bearer::Kind::kPart;
    bearer.job = std::string(fields[2]);
    good = PartToken(secret, bearer.part, bearer.job);
  } else {
    return std::nullopt;
  }
  if (!EqualConstantTime(token, good)) return std::nullopt;
  return bearer;
}

}  // namespace cadre
