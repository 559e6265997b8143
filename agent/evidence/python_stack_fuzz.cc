// Fuzzes a worker's stack file, which the worker itself may write.
#include "agent/evidence/python_stack.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto frames = cadre::agent::MainThreadOf(cadre::fuzz::Text(data, size));
  cadre::agent::PlaceOf(frames, [](const std::string& file, int) { return file; });
  return 0;
}
