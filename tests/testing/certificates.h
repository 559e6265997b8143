// Makes certificates for tests with the openssl command.
#ifndef CADRE_TESTS_TESTING_CERTIFICATES_H_
#define CADRE_TESTS_TESTING_CERTIFICATES_H_

#include <string>

namespace cadre {

// Returns a new directory with ca.pem, and with cert.pem and key.pem for this address, signed by
// that CA. They serve both sides of mutual TLS. An error fails the test.
std::string MakeCertificates(const std::string& address = "127.0.0.1");

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_CERTIFICATES_H_
