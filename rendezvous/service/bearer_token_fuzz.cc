// Tokens from any client: without the secret none of them is valid.
#include "absl/strings/str_cat.h"
#include "base/bearer_token.h"
#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr absl::string_view kSecret = "a secret that no fuzzer guesses";
  const absl::string_view text = cadre::fuzz::Text(data, size);
  CADRE_CHECK(!cadre::VerifiedBearer(kSecret, text).has_value());
  // A name of any bytes gives a token of that user or an invalid one, and never another user's.
  if (!cadre::IsUserName(text)) return 0;
  const auto bearer = cadre::VerifiedBearer(
      kSecret, cadre::UserToken(kSecret, 7, text, absl::FromUnixSeconds(1'800'000'000)));
  CADRE_CHECK(bearer.has_value() && bearer->user == text && bearer->server_id == 7);
  return 0;
}
