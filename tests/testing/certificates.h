// Certificates for tests, by the openssl command.
#ifndef CADRE_TESTS_TESTING_CERTIFICATES_H_
#define CADRE_TESTS_TESTING_CERTIFICATES_H_

#include <string>

namespace cadre {

// A new directory with ca.pem, and cert.pem and key.pem, for this address, that it signed. Good for
// both sides of mutual TLS. A failure fails the test.
std::string MakeCertificates(const std::string& address = "127.0.0.1");

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_CERTIFICATES_H_
