// Callers with each kind of token, for tests. A Bearer() is an administrator.
#ifndef CADRE_RENDEZVOUS_SERVICE_BEARERS_FOR_TEST_H_
#define CADRE_RENDEZVOUS_SERVICE_BEARERS_FOR_TEST_H_

#include <cstdint>
#include <string>

#include "base/bearer_token.h"

namespace cadre::service {

inline Bearer User(const std::string& name) {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kUser;
  bearer.user = name;
  return bearer;
}

inline Bearer Part(uint64_t part, const std::string& job) {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kPart;
  bearer.part = part;
  bearer.job = job;
  return bearer;
}

inline Bearer Reader() {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kReader;
  return bearer;
}

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_BEARERS_FOR_TEST_H_
