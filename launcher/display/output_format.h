// The forms of what commands print: lines that are safe for a terminal, tables, and JSON. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_OUTPUT_FORMAT_H_
#define CADRE_LAUNCHER_DISPLAY_OUTPUT_FORMAT_H_

#include <google/protobuf/message.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::launcher {

// Makes a line of a program's output, without its newline, safe for a terminal. Tabs and colours
// (SGR, as with less -R) are kept, and a colour ends with the line; if carriage returns overwrite
// the line, as in a progress bar, only its last state is kept; other control characters and bytes
// that are not UTF-8 become \xNN.
std::string TerminalLine(absl::string_view line);

// The same, cut to `columns`: colours take none, and East Asian characters and emoji two.
std::string TerminalLine(absl::string_view line, size_t columns);

// The most columns that such a line takes: a tab takes 8.
size_t Columns(absl::string_view line);

// A table with left-aligned columns, two spaces between them, control characters escaped, each line
// with its '\n'.
std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows);

// A message as JSON for `--output json`: one line, with the field names of the .proto files, and
// with fields of value 0, so that a reader finds rank 0 and status 0.
std::string JsonText(const google::protobuf::Message& message);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_OUTPUT_FORMAT_H_
