#include "rpc/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::rpc {
namespace {

constexpr off_t kPemBytesMax = 1 << 20;

struct PemFiles {
  std::string ca;
  std::string certificate;
  std::string key;
};

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

absl::StatusOr<PemFiles> ReadPemFiles(const std::string& directory) {
  PemFiles files;
  ASSIGN_OR_RETURN(files.ca, ReadPem(directory + "/ca.pem", false));
  ASSIGN_OR_RETURN(files.certificate, ReadPem(directory + "/cert.pem", false));
  ASSIGN_OR_RETURN(files.key, ReadPem(directory + "/key.pem", true));
  return files;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TransportSecurity& security) {
  if (security.tls_dir.empty()) return grpc::InsecureServerCredentials();
  ASSIGN_OR_RETURN(PemFiles files, ReadPemFiles(security.tls_dir));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(files.ca);
  options.pem_key_cert_pairs.push_back({std::move(files.key), std::move(files.certificate)});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TransportSecurity& security) {
  if (security.tls_dir.empty()) return grpc::InsecureChannelCredentials();
  ASSIGN_OR_RETURN(PemFiles files, ReadPemFiles(security.tls_dir));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(files.ca);
  options.pem_private_key = std::move(files.key);
  options.pem_cert_chain = std::move(files.certificate);
  return grpc::SslCredentials(options);
}

}  // namespace cadre::rpc
