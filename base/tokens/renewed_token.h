// A token that is read anew while its file says which it is. Thread safe; waits for the file
// system, and not for long.
#ifndef CADRE_BASE_TOKENS_RENEWED_TOKEN_H_
#define CADRE_BASE_TOKENS_RENEWED_TOKEN_H_

#include <mutex>
#include <string>

#include "base/threads/file_thread.h"

namespace cadre {

class RenewedToken {
 public:
  // `file`: where `token` was read; empty: it stays as it is.
  RenewedToken(std::string token, std::string file);

  // What the file holds now; where it cannot be read, or its file system does not answer, what it
  // held when it last could.
  std::string Current();

 private:
  const std::string file_;
  FileThread files_{{}};
  std::mutex mutex_;
  std::string token_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TOKENS_RENEWED_TOKEN_H_
