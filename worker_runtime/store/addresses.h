// The addresses that a host's name means, and whose they are.
#ifndef CADRE_WORKER_RUNTIME_STORE_ADDRESSES_H_
#define CADRE_WORKER_RUNTIME_STORE_ADDRESSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cadre/result.h"

namespace cadre::store {

inline constexpr char kLoopback[] = "127.0.0.1";

// In numbers, at least one; asks the system's resolver, which has time limits of its own.
// UNAVAILABLE: the name is not known.
Result<std::vector<std::string>> AddressesOf(const std::string& host);

// "127.0.0.1", "::1" and their like.
bool IsLoopback(absl::string_view address);
// The host is called so that it can mean nothing but loopback: "localhost", or such an address.
bool NamesLoopback(absl::string_view host);
// One of this machine's.
bool IsOwn(const std::string& address);

// "10.0.0.1:80", "[fe80::1]:80".
std::string EndpointAt(absl::string_view address, uint16_t port);

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_ADDRESSES_H_
