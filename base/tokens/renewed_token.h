// A token that is read anew while its file says which it is. Thread safe; blocks on the file
// system.
#ifndef CADRE_BASE_TOKENS_RENEWED_TOKEN_H_
#define CADRE_BASE_TOKENS_RENEWED_TOKEN_H_

#include <mutex>
#include <string>

namespace cadre {

class RenewedToken {
 public:
  // `file`: where `token` was read; empty: it stays as it is.
  RenewedToken(std::string token, std::string file);

  // What the file holds now; where it cannot be read, what it held when it last could.
  std::string Current();

 private:
  const std::string file_;
  std::mutex mutex_;
  std::string token_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TOKENS_RENEWED_TOKEN_H_
