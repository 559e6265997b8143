// Lines of a Python program's files. Reads files; any thread.
#ifndef CADRE_AGENT_EVIDENCE_SOURCE_LINE_H_
#define CADRE_AGENT_EVIDENCE_SOURCE_LINE_H_

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace cadre::agent {

// What is read of a file to find a line, and what is kept of the line.
inline constexpr size_t kMaxSourceBytes = 4 << 20;
inline constexpr size_t kMaxSourceLineBytes = 200;

// The text of a line as a process of the program would find it: a path that is not absolute is
// taken from its directory. UTF-8 in one line, without surrounding blanks. Empty: what is there is
// no regular file, may not be read, or has no such line in its first kMaxSourceBytes.
std::string SourceLine(pid_t process, const std::string& path, int number);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_EVIDENCE_SOURCE_LINE_H_
