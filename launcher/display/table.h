// Columns for people. Pure.
#ifndef CADRE_LAUNCHER_DISPLAY_TABLE_H_
#define CADRE_LAUNCHER_DISPLAY_TABLE_H_

#include <string>
#include <vector>

namespace cadre::launcher {

// Left-aligned, two spaces between columns, control characters escaped, each line with its '\n'.
std::string FormatTable(const std::vector<std::string>& header,
                        const std::vector<std::vector<std::string>>& rows);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_TABLE_H_
