// The function that libFuzzer calls, and what the fuzzers of all folders share. One that finds
// something wrong ends the process: CHECK, a sanitizer, or a time that runs out.
#ifndef CADRE_TESTS_FUZZ_FUZZ_TARGET_H_
#define CADRE_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace cadre::fuzz {

inline absl::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace cadre::fuzz

#endif  // CADRE_TESTS_FUZZ_FUZZ_TARGET_H_
