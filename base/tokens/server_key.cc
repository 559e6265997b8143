#include "base/tokens/server_key.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/x509.h>

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/check.h"
#include "base/keyed_digest.h"

namespace cadre {
namespace {

template <typename T, void (*Free)(T*)>
struct Freed {
  void operator()(T* value) const { Free(value); }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Memory = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;

// Separates this digest from those in tokens.
constexpr char kPurpose[] = "cadre server key 1";
constexpr char kName[] = "cadre server";

std::string Content(const Memory& memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Key KeyOf(absl::string_view secret) {
  const std::string seed = KeyedDigest(secret, kPurpose);
  return Key(EVP_PKEY_new_raw_private_key(
      EVP_PKEY_ED25519, nullptr, reinterpret_cast<const unsigned char*>(seed.data()), seed.size()));
}

Certificate CertificateOf(EVP_PKEY* key) {
  Certificate certificate(X509_new());
  X509* const x509 = certificate.get();
  X509_NAME* const name = X509_get_subject_name(x509);
  const bool made =
      X509_set_version(x509, 2) == 1 && ASN1_INTEGER_set(X509_get_serialNumber(x509), 1) == 1 &&
      ASN1_TIME_set_string(X509_getm_notBefore(x509), "20000101000000Z") == 1 &&
      ASN1_TIME_set_string(X509_getm_notAfter(x509), "99991231235959Z") == 1 &&
      X509_set_pubkey(x509, key) == 1 &&
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(kName), -1, -1, 0) == 1 &&
      X509_set_issuer_name(x509, name) == 1 && X509_sign(x509, key, nullptr) > 0;
  CADRE_CHECK(made, "OpenSSL makes no certificate");
  return certificate;
}

std::string FingerprintOf(EVP_PKEY* key) {
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY(key, &der);
  if (size <= 0) return "";
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(der, static_cast<size_t>(size), digest);
  OPENSSL_free(der);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

}  // namespace

bool MakesServerKey(absl::string_view secret) {
  return secret.size() == 64 && std::all_of(secret.begin(), secret.end(), [](char c) {
           return absl::ascii_isxdigit(c) && !absl::ascii_isupper(c);
         });
}

ServerIdentity MakeServerIdentity(absl::string_view secret) {
  const Key key = KeyOf(secret);
  CADRE_CHECK(key != nullptr, "OpenSSL knows no Ed25519");
  const Certificate certificate = CertificateOf(key.get());
  const Memory key_pem(BIO_new(BIO_s_mem())), certificate_pem(BIO_new(BIO_s_mem()));
  PEM_write_bio_PKCS8PrivateKey(key_pem.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  PEM_write_bio_X509(certificate_pem.get(), certificate.get());
  return {Content(key_pem), Content(certificate_pem)};
}

std::string KeyFingerprint(absl::string_view certificate_pem) {
  const Memory memory(
      BIO_new_mem_buf(certificate_pem.data(), static_cast<int>(certificate_pem.size())));
  const Certificate certificate(PEM_read_bio_X509(memory.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return "";
  return FingerprintOf(X509_get0_pubkey(certificate.get()));
}

std::string ServerKeyOf(absl::string_view secret) {
  if (!MakesServerKey(secret)) return "";
  const Key key = KeyOf(secret);
  CADRE_CHECK(key != nullptr, "OpenSSL knows no Ed25519");
  return FingerprintOf(key.get());
}

}  // namespace cadre
