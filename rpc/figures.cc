#include "rpc/figures.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"

namespace cadre::rpc {

bool IsFigureName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxFigureName || !absl::ascii_isalpha(name[0])) return false;
  for (const absl::string_view taken : {"step", "total", "samples_per_second", "loss"}) {
    if (name == taken) return false;
  }
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '/';
  });
}

bool SetFigure(absl::string_view name, double value, Figures* figures) {
  for (v1::Figure& figure : *figures) {
    if (figure.name() != name) continue;
    figure.set_value(value);
    return true;
  }
  if (figures->size() >= kMaxFigures || !IsFigureName(name)) return false;
  v1::Figure* added = figures->Add();
  added->set_name(std::string(name));
  added->set_value(value);
  return true;
}

Figures CheckedFigures(const Figures& figures) {
  Figures checked;
  for (const v1::Figure& figure : figures) SetFigure(figure.name(), figure.value(), &checked);
  return checked;
}

}  // namespace cadre::rpc
