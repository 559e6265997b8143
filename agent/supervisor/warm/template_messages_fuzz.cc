// Fuzzes the messages of a template, in which a user's modules run.
#include "agent/supervisor/warm/template_messages.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cadre::supervisor::ParseAnswer(cadre::fuzz::Text(data, size)).IgnoreError();
  return 0;
}
