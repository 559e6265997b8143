// Whoever shows a token: without the secret nobody is taken for its owner.
#include "absl/strings/str_cat.h"
#include "base/bearer_token.h"
#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr absl::string_view kSecret = "a secret that no fuzzer guesses";
  const absl::string_view text = cadre::fuzz::Text(data, size);
  CADRE_CHECK(!cadre::BearerOf(kSecret, text).has_value());
  // A name of any bytes is a token's owner or none's, and never another's.
  if (!cadre::IsUserName(text)) return 0;
  const auto bearer = cadre::BearerOf(
      kSecret, cadre::UserToken(kSecret, 7, text, absl::FromUnixSeconds(1'800'000'000)));
  CADRE_CHECK(bearer.has_value() && bearer->user == text && bearer->server_id == 7);
  return 0;
}
