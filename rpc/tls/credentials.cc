#include "rpc/tls/credentials.h"

#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "base/bearer_token.h"
#include "base/status_macros.h"
#include "base/tokens/server_key.h"
#include "rpc/tls/pem_files.h"

namespace cadre::rpc {
namespace {

namespace tls = grpc::experimental;

// Lets through the server that has proved, in the handshake before, to have this key.
class KeyVerifier final : public tls::ExternalCertificateVerifier {
 public:
  explicit KeyVerifier(std::string key) : key_(std::move(key)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*later*/, grpc::Status* result) override {
    const grpc::string_ref shown = request->peer_cert();
    if (KeyFingerprint({shown.data(), shown.size()}) != key_) {
      *result = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "the server has another key");
    }
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string key_;
};

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ForKeyOf(const std::string& token) {
  std::string key = ServerKeyNamedBy(token);
  if (key.empty()) return absl::InvalidArgumentError(kNoServerKey);
  // gRPC would read all of this machine's certificate authorities, and then use none.
  static const auto* const root = new std::string(MakeServerIdentity("").certificate_pem);
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(*root));
  options.watch_root_certs();
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<KeyVerifier>(std::move(key)));
  return tls::TlsCredentials(options);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TransportSecurity& security, const std::string& token) {
  if (security.tls_dir.empty() && security.by_token) return ForKeyOf(token);
  if (security.tls_dir.empty()) return grpc::InsecureChannelCredentials();
  ASSIGN_OR_RETURN(PemFiles files, ReadPemFiles(security.tls_dir, !security.nameless));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(files.ca);
  options.pem_private_key = std::move(files.key);
  options.pem_cert_chain = std::move(files.certificate);
  return grpc::SslCredentials(options);
}

}  // namespace cadre::rpc
