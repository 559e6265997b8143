#include "launcher/display/warm_text.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "launcher/display/table.h"

namespace cadre::launcher {
namespace {

bool IsKnown(const v1::NodeStatus& node) {
  return node.warm() != 0 || !node.why_plain().empty() || node.has_imports();
}

std::string StartedText(const v1::NodeStatus& node) {
  const std::string warm = node.warm() == 0 ? "" : absl::StrCat(node.warm(), " warm");
  if (node.why_plain().empty()) return warm.empty() ? "-" : warm;
  return absl::StrCat(warm, warm.empty() ? "" : ", others ",
                      "plainly: ", EscapeControl(node.why_plain()));
}

std::string TemplateText(const v1::ProgramImports& imports) {
  if (imports.template_modules() == 0) return "-";
  return absl::StrCat(imports.template_modules(), " modules in ",
                      ImportsText(imports.template_us()));
}

}  // namespace

std::string ImportsText(int64_t imports_us) {
  if (imports_us == 0) return "-";
  return absl::FormatDuration(absl::Milliseconds(imports_us / 1000));
}

std::string WarmStartsTable(const v1::JobStatus& job) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::NodeStatus& node : job.nodes()) {
    if (!IsKnown(node)) continue;
    rows.push_back({node.name(), StartedText(node), ImportsText(node.imports().worker_us()),
                    TemplateText(node.imports())});
  }
  return rows.empty() ? "" : FormatTable({"NODE", "STARTED", "IMPORTS", "TEMPLATE"}, rows);
}

std::string PlainStartsText(const v1::Timeline& timeline) {
  std::string text;
  for (const v1::GenerationTimeline& g : timeline.generations()) {
    if (g.why_plain().empty()) continue;
    absl::StrAppend(&text, "generation ", g.generation(), ": ",
                    g.warm() == 0 ? "" : "some workers ",
                    "started plainly, not warm: ", EscapeControl(g.why_plain()), "\n");
  }
  // They are the same in most generations.
  std::set<std::string> left;
  for (const v1::GenerationTimeline& g : timeline.generations()) {
    left.insert(g.left_to_workers().begin(), g.left_to_workers().end());
  }
  for (const std::string& package : left) {
    absl::StrAppend(&text, "imported by each worker itself: ", EscapeControl(package), "\n");
  }
  return text;
}

}  // namespace cadre::launcher
