// The files of mutual TLS. Blocks on the file system; thread safe.
#ifndef CADRE_RPC_TLS_PEM_FILES_H_
#define CADRE_RPC_TLS_PEM_FILES_H_

#include <string>

#include "absl/status/statusor.h"

namespace cadre::rpc {

struct PemFiles {
  std::string ca;
  // Both empty where they were not asked for.
  std::string certificate;
  std::string key;

  bool operator==(const PemFiles& other) const {
    return ca == other.ca && certificate == other.certificate && key == other.key;
  }
};

// ca.pem, and with `own` cert.pem and key.pem of the directory. INVALID_ARGUMENT naming the file
// when one of them is absent, unreadable, or (key.pem) open to other users, or when the certificate
// is not the key's.
absl::StatusOr<PemFiles> ReadPemFiles(const std::string& directory, bool own);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TLS_PEM_FILES_H_
