// Writes a libtorch archive to a file, and reads one. libtorch's own archive.save_to(path) ends the
// process if the disk is full, by an exception in a destructor, and load_from(path) throws; here
// both return errors. Used by one thread.
#ifndef CADRE_TORCH_ARCHIVE_FILE_H_
#define CADRE_TORCH_ARCHIVE_FILE_H_

#include <functional>
#include <string>

#include "cadre/status.h"
#include "torch/torch.h"

namespace cadre {

// The file is not synced: SaveCheckpoint does that. An error names the file and the reason; a
// partly written file is left for the caller to remove.
Status SaveArchive(torch::serialize::OutputArchive& archive, const std::string& path);

// Calls `read` with the archive in the file, loaded onto `device`; `read` may throw as libtorch
// does.
//   NOT_FOUND         there is no such file
//   INVALID_ARGUMENT  naming the file: it is not a libtorch archive (those of Python's torch.save()
//                     are not), or an entry that `read` asks for is missing
Status LoadArchive(const std::string& path, const torch::Device& device,
                   const std::function<void(torch::serialize::InputArchive&)>& read);

}  // namespace cadre

#endif  // CADRE_TORCH_ARCHIVE_FILE_H_
