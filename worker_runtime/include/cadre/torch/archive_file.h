// Writes a libtorch archive to a file. libtorch's own archive.save_to(path) ends the process where
// the disk is full, by an exception in a destructor; here that is an error. One thread.
#ifndef CADRE_TORCH_ARCHIVE_FILE_H_
#define CADRE_TORCH_ARCHIVE_FILE_H_

#include <string>

#include "cadre/status.h"
#include "torch/torch.h"

namespace cadre {

// Not synced: that is SaveCheckpoint's part. An error names the file and says why; what was written
// until then is left for the caller to remove.
Status SaveArchive(torch::serialize::OutputArchive& archive, const std::string& path);

}  // namespace cadre

#endif  // CADRE_TORCH_ARCHIVE_FILE_H_
