#include "launcher/display/json_text.h"

#include <google/protobuf/util/json_util.h>

namespace cadre::launcher {

std::string JsonText(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  // Fails for the well-known type Any alone, which no message of ours has.
  google::protobuf::util::MessageToJsonString(message, &json, options).ok();
  return json;
}

}  // namespace cadre::launcher
