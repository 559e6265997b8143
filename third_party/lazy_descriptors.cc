// Each file that protoc makes has all its descriptors parsed and entered into a table before
// main(): those of ours and of Protobuf's own take a launcher two of the three milliseconds until
// it does something. Who asks a message for its descriptor has its file's entered then, with those
// that it imports; only who looks one up by its name, without a message of its file, would not find
// it. The linker puts this in the place of the constructor that begins it: --wrap in this library's
// linkopts.
#include "google/protobuf/generated_message_reflection.h"

extern "C" void
__wrap__ZN6google8protobuf8internal20AddDescriptorsRunnerC1EPKNS1_15DescriptorTableE(
    google::protobuf::internal::AddDescriptorsRunner* runner,
    const google::protobuf::internal::DescriptorTable* table) {
  (void)runner;
  (void)table;
}
