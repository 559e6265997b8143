#include "rpc/tls/pem_files.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::rpc {
namespace {

constexpr off_t kPemBytesMax = 1 << 20;

absl::StatusOr<std::string> ReadOpenPem(int fd, const std::string& path, bool secret) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kPemBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS: ", path, " must be a regular file of at most 1 MiB"));
  }
  if (secret && (info.st_mode & 077) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS: ", path, " is open to other users: chmod 600 ", path));
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t size = 0;
  while (size < content.size()) {
    const ssize_t got = read(fd, &content[size], content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  content.resize(size);
  if (content.find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("TLS: ", path, " is not in PEM format"));
  }
  return content;
}

absl::StatusOr<std::string> ReadPem(const std::string& path, bool secret) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string reason(absl::ErrnoToStatus(errno, "").message());
    return absl::InvalidArgumentError(
        absl::StrCat("TLS: cannot open ", path, reason,
                     "; the directory must hold ca.pem, cert.pem and key.pem"));
  }
  absl::StatusOr<std::string> content = ReadOpenPem(fd, path, secret);
  close(fd);
  return content;
}

// While both files are being replaced, they do not match for a moment.
bool BelongTogether(const PemFiles& files) {
  BIO* const certificate_pem =
      BIO_new_mem_buf(files.certificate.data(), static_cast<int>(files.certificate.size()));
  BIO* const key_pem = BIO_new_mem_buf(files.key.data(), static_cast<int>(files.key.size()));
  X509* const certificate = PEM_read_bio_X509(certificate_pem, nullptr, nullptr, nullptr);
  // With an empty passphrase, because OpenSSL would prompt for one at the terminal.
  char passphrase[] = "";
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(key_pem, nullptr, nullptr, passphrase);
  const bool fit =
      certificate != nullptr && key != nullptr && X509_check_private_key(certificate, key) == 1;
  EVP_PKEY_free(key);
  X509_free(certificate);
  BIO_free(key_pem);
  BIO_free(certificate_pem);
  return fit;
}

}  // namespace

absl::StatusOr<PemFiles> ReadPemFiles(const std::string& directory, bool own) {
  PemFiles files;
  ASSIGN_OR_RETURN(files.ca, ReadPem(directory + "/ca.pem", false));
  if (!own) return files;
  ASSIGN_OR_RETURN(files.certificate, ReadPem(directory + "/cert.pem", false));
  ASSIGN_OR_RETURN(files.key, ReadPem(directory + "/key.pem", true));
  if (BelongTogether(files)) return files;
  return absl::InvalidArgumentError(
      absl::StrCat("TLS: cert.pem and key.pem in ", directory, " do not belong together"));
}

}  // namespace cadre::rpc
