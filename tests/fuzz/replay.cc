// Runs a fuzzer over its corpus without libFuzzer, so that every build does: each file, each of its
// beginnings, and each with one byte changed, in the same order every time. What libFuzzer finds
// with coverage and sanitizers (tools/fuzz) becomes a file of the corpus.
//
//   usage: NAME_fuzz_test FILE...
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/fuzz/fuzz_target.h"

namespace {

// Of the places of a long file where a byte is changed or the end is cut off.
constexpr size_t kMaxPlaces = 2000;

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

void RunLike(const std::string& input) {
  Run(input);
  const size_t stride = std::max<size_t>(1, input.size() / kMaxPlaces);
  for (size_t at = 0; at < input.size(); at += stride) {
    Run(input.substr(0, at));
    for (const char byte : {'\0', '\x7f', '\xff', static_cast<char>(input[at] ^ 1)}) {
      std::string changed = input;
      changed[at] = byte;
      Run(changed);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Run("");
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
    RunLike(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  std::printf("%d files\n", argc - 1);
  return argc > 1 ? 0 : 1;
}
