// The formats of the tables of squeue and sinfo: "%.18i %9P %j" of their option --format, and
// "JobID:.18 ,Partition:9,Name" of --Format. Pure.
#ifndef CADRE_LAUNCHER_SLURM_COLUMN_FORMAT_H_
#define CADRE_LAUNCHER_SLURM_COLUMN_FORMAT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::launcher {

struct ColumnOfFormat {
  // The letter or the name of the field, in small letters if it is a name.
  std::string field;
  // 0: as wide as the text.
  size_t width = 0;
  // To the right.
  bool right = false;
  // The text after the field.
  std::string suffix;
};

struct ColumnFormat {
  // The text in front of the first field.
  std::string prefix;
  std::vector<ColumnOfFormat> columns;
};

// An empty field is one that is missing, as in "%".
ColumnFormat ParseLetterFormat(absl::string_view text);
// A field without a width is 20 wide.
ColumnFormat ParseNameFormat(absl::string_view text);

// The text in a field of this width, to the right or to the left. It is cut, unless `cuts` is
// false. Width 0: as it is.
std::string Field(absl::string_view text, size_t width, bool right, bool cuts = true);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_COLUMN_FORMAT_H_
