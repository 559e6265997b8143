// Lines of workers that contain one of some texts, once more in a file: torchrun's
// --duplicate-stdout-filters. Used by one thread, which renews the node's lease and waits for no
// file.
#ifndef CADRE_AGENT_WORKERS_FILTERED_LINES_H_
#define CADRE_AGENT_WORKERS_FILTERED_LINES_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "base/threads/file_thread.h"

namespace cadre::agent {

class FilteredLines {
 public:
  // No texts: no lines.
  explicit FilteredLines(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  // Drains.
  ~FilteredLines();
  FilteredLines(const FilteredLines&) = delete;
  FilteredLines& operator=(const FilteredLines&) = delete;

  bool wanted() const { return !texts_.empty(); }
  // From now on lines are appended to `path`. False: it cannot be written. Waits a moment for a
  // file system that does not answer.
  bool Open(const std::string& path);
  // Whole lines, each with a prefix of so many bytes that is written and not searched. They are
  // written soon; where the file system does not keep up they are left out, and the file says so.
  void Add(absl::string_view lines, size_t prefix_bytes);
  // Waits a moment until all is written. False: it is not.
  bool Drain();

 private:
  // The thread's.
  struct File {
    bool Open();
    // How much of it.
    size_t Write(absl::string_view bytes);
    // `skipped`: bytes that were left out before. What a disk that is full does not take is left
    // out too, and where there is room again the file says so.
    void Append(size_t skipped, absl::string_view lines);

    std::string path;
    ScopedFd fd;
    size_t lost = 0;           // bytes since the last that could be written
    bool within_line = false;  // of which the rest is lost
  };

  const std::vector<std::string> texts_;
  FileThread thread_{{}};
  std::shared_ptr<File> file_;
  size_t left_out_ = 0;  // bytes since the last that were given to the thread
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_FILTERED_LINES_H_
