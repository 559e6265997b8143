// The files of mutual TLS. Blocks on the file system; thread safe.
#ifndef CADRE_RPC_TLS_PEM_FILES_H_
#define CADRE_RPC_TLS_PEM_FILES_H_

#include <string>

#include "absl/status/statusor.h"

namespace cadre::rpc {

struct PemFiles {
  std::string ca;
  // Both are empty unless `own` was set.
  std::string certificate;
  std::string key;

  bool operator==(const PemFiles& other) const {
    return ca == other.ca && certificate == other.certificate && key == other.key;
  }
};

// Reads ca.pem, and with `own` cert.pem and key.pem, from the directory. INVALID_ARGUMENT names the
// file if one is missing, unreadable, or (key.pem) open to other users, or if the certificate does
// not match the key.
absl::StatusOr<PemFiles> ReadPemFiles(const std::string& directory, bool own);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TLS_PEM_FILES_H_
