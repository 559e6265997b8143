// Whether Protobuf could parse again what a message would be saved as. Pure.
#ifndef CADRE_RENDEZVOUS_STATE_UTF8_FIELDS_H_
#define CADRE_RENDEZVOUS_STATE_UTF8_FIELDS_H_

#include <string>

#include "google/protobuf/message.h"

namespace cadre::state {

// The first field with text that is not UTF-8, as "logs.dir"; empty: all is. What came over gRPC
// was parsed; what a launcher hands to the server in its own process was not.
std::string FieldWithoutUtf8(const google::protobuf::Message& message);

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_UTF8_FIELDS_H_
