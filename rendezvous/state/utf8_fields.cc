#include "rendezvous/state/utf8_fields.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "google/protobuf/descriptor.h"

namespace cadre::state {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Where in one value of a field, "" in the value itself; nullopt: nowhere. `index` is -1 where the
// field has one value.
std::optional<std::string> InValue(const Message& message, const FieldDescriptor& field,
                                   int index) {
  const Reflection& fields = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    const std::string below =
        FieldWithoutUtf8(index < 0 ? fields.GetMessage(message, &field)
                                   : fields.GetRepeatedMessage(message, &field, index));
    if (below.empty()) return std::nullopt;
    // An entry of a map is known by its key, which may be what is wrong.
    return field.is_map() ? "" : absl::StrCat(".", below);
  }
  std::string room;
  const std::string& text = index < 0
                                ? fields.GetStringReference(message, &field, &room)
                                : fields.GetRepeatedStringReference(message, &field, index, &room);
  return IsUtf8(text) ? std::nullopt : std::make_optional<std::string>();
}

std::optional<std::string> InField(const Message& message, const FieldDescriptor& field) {
  if (!field.is_repeated()) return InValue(message, field, -1);
  std::optional<std::string> found;
  const int size = message.GetReflection()->FieldSize(message, &field);
  for (int i = 0; i < size && !found.has_value(); ++i) found = InValue(message, field, i);
  return found;
}

}  // namespace

std::string FieldWithoutUtf8(const Message& message) {
  std::vector<const FieldDescriptor*> present;
  message.GetReflection()->ListFields(message, &present);
  for (const FieldDescriptor* field : present) {
    const bool has_text = field->type() == FieldDescriptor::TYPE_STRING ||
                          field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!has_text) continue;
    const std::optional<std::string> found = InField(message, *field);
    if (found.has_value()) return absl::StrCat(field->name(), *found);
  }
  return "";
}

}  // namespace cadre::state
