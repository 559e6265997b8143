#include "agent/supervisor/warm/template_messages.h"

#include <initializer_list>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace cadre::supervisor {
namespace {

constexpr size_t kMaxReasons = 64;

absl::StatusOr<std::string> Joined(const std::vector<std::string>& fields) {
  for (const std::string& field : fields) {
    if (field.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError("a field has a NUL in it");
    }
  }
  std::string message = absl::StrJoin(fields, absl::string_view("\0", 1));
  if (message.size() > kMaxOrderBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("command and environment take ",
                                                     message.size(), " bytes; at most ",
                                                     kMaxOrderBytes, " go to a template"));
  }
  return message;
}

// The first name with a comma.
std::optional<std::string> NameWithComma(
    std::initializer_list<const std::vector<std::string>*> lists) {
  for (const std::vector<std::string>* names : lists) {
    for (const std::string& name : *names) {
      if (name.find(',') != std::string::npos) return name;
    }
  }
  return std::nullopt;
}

absl::Status Broken(absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("the template sent an invalid message: '",
                                                 absl::CEscape(message.substr(0, 80)), "'"));
}

TemplateRefused Refused(const std::vector<absl::string_view>& fields) {
  TemplateRefused refused;
  for (size_t i = 1; i < fields.size() && i <= kMaxReasons; ++i) {
    refused.names.emplace_back(fields[i].substr(0, fields[i].find(':')));
    refused.reasons.emplace_back(fields[i]);
  }
  return refused;
}

}  // namespace

absl::StatusOr<std::string> Encode(const ImportOrder& order) {
  if (const auto name = NameWithComma({&order.preload, &order.refused, &order.rank_variables})) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name ", *name,
                     ", of a module or an environment variable, has a comma in it, and orders to a "
                     "template separate names by commas"));
  }
  std::vector<std::string> fields = {"imports",
                                     order.module,
                                     order.script,
                                     order.learned,
                                     absl::StrJoin(order.preload, ","),
                                     absl::StrJoin(order.refused, ","),
                                     absl::StrJoin(order.rank_variables, ",")};
  fields.insert(fields.end(), order.environment.begin(), order.environment.end());
  return Joined(fields);
}

absl::StatusOr<std::string> Encode(const ForkOrder& order) {
  std::vector<std::string> fields = {"fork", absl::StrCat(order.serial), order.marker,
                                     order.directory, order.learned};
  fields.insert(fields.end(), order.environment.begin(), order.environment.end());
  return Joined(fields);
}

absl::StatusOr<TemplateAnswer> ParseAnswer(absl::string_view message) {
  const std::vector<absl::string_view> fields = absl::StrSplit(message, '\0');
  const absl::string_view kind = fields[0];
  if (kind == "refused" && fields.size() > 1) return Refused(fields);
  if (kind == "ended" && fields.size() == 2) return TemplateEnded{std::string(fields[1])};
  if (kind == "looks" && fields.size() == 1) return TemplateImports{true};
  if (kind == "imports" && fields.size() == 1) return TemplateImports{false};
  if (kind == "ready" && fields.size() > 2) {
    TemplateReady ready;
    for (size_t i = 3; i < fields.size() && ready.notes.size() < kMaxReasons; ++i) {
      ready.notes.emplace_back(fields[i]);
    }
    if (absl::SimpleAtoi(fields[1], &ready.modules) &&
        absl::SimpleAtoi(fields[2], &ready.milliseconds)) {
      return ready;
    }
  }
  uint64_t serial = 0;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &serial)) return Broken(message);
  if (kind == "forked" && fields.size() == 3) {
    WorkerForked forked{serial, 0};
    if (absl::SimpleAtoi(fields[2], &forked.pid) && forked.pid > 1) return forked;
  }
  if (kind == "failed" && fields.size() == 3) {
    return WorkerNotForked{serial, std::string(fields[2]), false};
  }
  if (kind == "stale" && fields.size() == 3) {
    return WorkerNotForked{
        serial,
        absl::StrCat("a package that its template has imported was installed anew: ", fields[2]),
        true};
  }
  return Broken(message);
}

}  // namespace cadre::supervisor
