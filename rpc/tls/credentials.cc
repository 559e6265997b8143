#include "rpc/tls/credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <functional>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "base/bearer_token.h"
#include "base/status_macros.h"
#include "base/tokens/server_key.h"
#include "rpc/tls/pem_files.h"

namespace cadre::rpc {
namespace {

namespace tls = grpc::experimental;

// Accepts the server if it proved in the handshake that it has this key.
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
  std::string key = ServerKeyInToken(token);
  if (key.empty()) return absl::InvalidArgumentError(kNoServerKey);
  // Without this gRPC would read all certificate authorities of the machine, and not use them.
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

namespace {

bool HasTls(const TransportSecurity& security) {
  return !security.tls_dir.empty() || security.by_token;
}

absl::StatusOr<PemFiles> FilesOf(const TransportSecurity& security, const std::string& token) {
  if (!security.tls_dir.empty()) return ReadPemFiles(security.tls_dir, true);
  if (!MakesServerKey(token)) return absl::InvalidArgumentError(kNoServerKey);
  ServerIdentity identity = MakeServerIdentity(token);
  // No client is asked for a certificate, but gRPC requires an authority all the same.
  return PemFiles{identity.certificate_pem, identity.certificate_pem, std::move(identity.key_pem)};
}

}  // namespace

struct ServerSecurity::State {
  // gRPC calls it before each handshake. If a new configuration is unusable, gRPC keeps the one
  // before.
  static grpc_ssl_certificate_config_reload_status Fetch(void* user_data,
                                                         grpc_ssl_server_certificate_config** out) {
    State& state = *static_cast<State*>(user_data);
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (!state.is_new) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    state.is_new = false;
    const grpc_ssl_pem_key_cert_pair own = {state.files.key.c_str(),
                                            state.files.certificate.c_str()};
    *out = grpc_ssl_server_certificate_config_create(state.files.ca.c_str(), &own, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  explicit State(const TransportSecurity& security) : security(security) {}

  const TransportSecurity security;
  std::mutex mutex;
  PemFiles files;
  // gRPC has not fetched the new files yet.
  bool is_new = false;
};

namespace {

// gRPC's C++ API has no credentials whose certificate can change; its C API has.
class RenewedCredentials final : public grpc::ServerCredentials {
 public:
  RenewedCredentials(ServerSecurity::State* state, grpc_ssl_client_certificate_request_type request)
      : credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                request, &ServerSecurity::State::Fetch, state))) {}
  ~RenewedCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

ServerSecurity::ServerSecurity(std::unique_ptr<State> state) : state_(std::move(state)) {}
ServerSecurity::~ServerSecurity() = default;

absl::StatusOr<std::unique_ptr<ServerSecurity>> ServerSecurity::Make(
    const TransportSecurity& security, const std::string& token) {
  std::unique_ptr<ServerSecurity> made(new ServerSecurity(std::make_unique<State>(security)));
  RETURN_IF_ERROR(made->Renew(token).status());
  return made;
}

std::shared_ptr<grpc::ServerCredentials> ServerSecurity::Credentials() const {
  if (!HasTls(state_->security)) return grpc::InsecureServerCredentials();
  // A client without a certificate needs a token that is valid without one (service/server.cc).
  return std::make_shared<RenewedCredentials>(state_.get(),
                                              state_->security.tls_dir.empty()
                                                  ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                  : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
}

absl::StatusOr<bool> ServerSecurity::Renew(const std::string& token) {
  if (!HasTls(state_->security)) return false;
  ASSIGN_OR_RETURN(PemFiles files, FilesOf(state_->security, token));
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (files == state_->files) return false;
  state_->files = std::move(files);
  state_->is_new = true;
  return true;
}

bool HasCertificate(const grpc::ServerContext& context) {
  return !context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty();
}

}  // namespace cadre::rpc
