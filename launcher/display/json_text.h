// Messages as JSON for `--output json`: one line, the field names of the .proto files, and fields
// of value 0 written out, so that a reader finds rank 0 and status 0.
#ifndef CADRE_LAUNCHER_DISPLAY_JSON_TEXT_H_
#define CADRE_LAUNCHER_DISPLAY_JSON_TEXT_H_

#include <google/protobuf/message.h>

#include <string>

namespace cadre::launcher {

std::string JsonText(const google::protobuf::Message& message);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_JSON_TEXT_H_
