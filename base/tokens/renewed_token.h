// A token that is read again from its file at each use. Thread safe; blocks on the file system, for
// kFileTaskHungAfter at most.
#ifndef CADRE_BASE_TOKENS_RENEWED_TOKEN_H_
#define CADRE_BASE_TOKENS_RENEWED_TOKEN_H_

#include <mutex>
#include <string>

#include "base/threads/file_thread.h"

namespace cadre {

class RenewedToken {
 public:
  // `file`: where `token` was read; empty: the token never changes.
  RenewedToken(std::string token, std::string file);

  // Returns what the file holds now, or, if it cannot be read or its file system does not answer,
  // what it held when it was last read.
  std::string Current();

 private:
  const std::string file_;
  FileThread files_{{}};
  std::mutex mutex_;
  std::string token_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TOKENS_RENEWED_TOKEN_H_
