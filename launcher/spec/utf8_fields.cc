#include "launcher/spec/utf8_fields.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "google/protobuf/descriptor.pb.h"

namespace cadre::launcher {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A path has 4,096 bytes at most.
constexpr size_t kMostShown = 4096;

// `path` of the message, with a dot at its end, or nothing.
absl::Status CheckFields(const Message& message, const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* const field : fields) {
    const std::string name = absl::StrCat(path, field->name());
    const bool several = field->is_repeated();
    const int size = several ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        RETURN_IF_ERROR(CheckFields(several ? reflection.GetRepeatedMessage(message, field, i)
                                            : reflection.GetMessage(message, field),
                                    absl::StrCat(name, ".")));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string text = several ? reflection.GetRepeatedString(message, field, i)
                                         : reflection.GetString(message, field);
        if (IsUtf8(text)) continue;
        // The values of an environment may be secrets.
        const std::string shown =
            message.GetDescriptor()->options().map_entry()
                ? ""
                : absl::StrCat(": '", absl::CHexEscape(text.substr(0, kMostShown)), "'");
        return absl::InvalidArgumentError(absl::StrCat(
            name, shown,
            " is not UTF-8 text, which is all that a server takes; choose another name"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckUtf8Fields(const Message& message) { return CheckFields(message, ""); }

}  // namespace cadre::launcher
