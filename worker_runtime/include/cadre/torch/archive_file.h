// A libtorch archive to a file, and from one. libtorch's own archive.save_to(path) ends the process
// where the disk is full, by an exception in a destructor, and load_from(path) throws; here both
// are errors. One thread.
#ifndef CADRE_TORCH_ARCHIVE_FILE_H_
#define CADRE_TORCH_ARCHIVE_FILE_H_

#include <functional>
#include <string>

#include "cadre/status.h"
#include "torch/torch.h"

namespace cadre {

// Not synced: that is SaveCheckpoint's part. An error names the file and says why; what was written
// until then is left for the caller to remove.
Status SaveArchive(torch::serialize::OutputArchive& archive, const std::string& path);

// Has `read` take what the archive holds, onto `device`; it may throw as libtorch does.
//   NOT_FOUND         there is no such file
//   INVALID_ARGUMENT  it is no archive of libtorch's, as those of Python's torch.save() are not, or
//                     what is read is not in it; says so, and names the file
Status LoadArchive(const std::string& path, const torch::Device& device,
                   const std::function<void(torch::serialize::InputArchive&)>& read);

}  // namespace cadre

#endif  // CADRE_TORCH_ARCHIVE_FILE_H_
