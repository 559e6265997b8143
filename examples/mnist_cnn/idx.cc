#include "examples/mnist_cnn/idx.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::mnist {
namespace {

// The third byte of the magic number says "unsigned bytes", the fourth how many dimensions follow.
constexpr uint32_t kImages = 0x00000803;
constexpr uint32_t kLabels = 0x00000801;
constexpr uint32_t kMaxItems = 10 * 1000 * 1000;
constexpr uint32_t kMaxSide = 4096;
constexpr uint8_t kMaxLabel = 9;

// zlib reads plain files too.
class Reader {
 public:
  static absl::StatusOr<Reader> Open(const std::string& path) {
    for (const std::string& candidate : {path, path + ".gz"}) {
      gzFile file = gzopen(candidate.c_str(), "rbe");
      if (file != nullptr) return Reader(file, candidate);
      if (errno != ENOENT) {
        return absl::UnavailableError(absl::StrCat(candidate, ": ", std::strerror(errno)));
      }
    }
    return absl::NotFoundError(absl::StrCat(path, ": no such file, neither plain nor with .gz"));
  }

  absl::Status Read(void* target, size_t bytes) {
    auto* at = static_cast<unsigned char*>(target);
    while (bytes > 0) {
      const auto chunk = static_cast<unsigned>(std::min<size_t>(bytes, size_t{1} << 24));
      const int got = gzread(file_.get(), at, chunk);
      if (got < 0) return Error("is damaged");
      if (got == 0) return Error("ends too early");
      at += got;
      bytes -= got;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> ReadNumber() {
    unsigned char bytes[4];
    CADRE_RETURN_IF_ERROR(Read(bytes, sizeof(bytes)));
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
  }

  absl::Status Expect(uint32_t magic, const char* what) {
    CADRE_ASSIGN_OR_RETURN(const uint32_t found, ReadNumber());
    if (found == magic) return absl::OkStatus();
    return Error(absl::StrCat("is not an IDX file of ", what, ": it begins with ",
                              absl::Hex(found, absl::kZeroPad8), " instead of ",
                              absl::Hex(magic, absl::kZeroPad8)));
  }

  absl::Status Error(const std::string& what) const {
    return absl::DataLossError(absl::StrCat(path_, " ", what));
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  Reader(gzFile file, std::string path) : file_(file), path_(std::move(path)) {}

  std::unique_ptr<std::remove_pointer_t<gzFile>, Close> file_;
  std::string path_;
};

void AppendNumber(std::string& text, uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) text.push_back(static_cast<char>(number >> shift));
}

absl::Status WriteFile(const std::string& path, const std::string& header,
                       const std::vector<uint8_t>& body) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(header.data(), header.size());
  file.write(reinterpret_cast<const char*>(body.data()), body.size());
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot write"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageSet> ReadImageSet(const std::string& directory, const std::string& prefix,
                                      size_t limit) {
  CADRE_ASSIGN_OR_RETURN(Reader images,
                         Reader::Open(directory + "/" + prefix + "-images-idx3-ubyte"));
  CADRE_RETURN_IF_ERROR(images.Expect(kImages, "images"));
  CADRE_ASSIGN_OR_RETURN(uint32_t count, images.ReadNumber());
  CADRE_ASSIGN_OR_RETURN(const uint32_t rows, images.ReadNumber());
  CADRE_ASSIGN_OR_RETURN(const uint32_t columns, images.ReadNumber());
  if (count == 0 || count > kMaxItems || rows == 0 || rows > kMaxSide || columns == 0 ||
      columns > kMaxSide) {
    return images.Error(absl::StrCat("announces ", count, " images of ", rows, " by ", columns,
                                     ", which cannot be right"));
  }
  CADRE_ASSIGN_OR_RETURN(Reader labels,
                         Reader::Open(directory + "/" + prefix + "-labels-idx1-ubyte"));
  CADRE_RETURN_IF_ERROR(labels.Expect(kLabels, "labels"));
  CADRE_ASSIGN_OR_RETURN(const uint32_t label_count, labels.ReadNumber());
  if (label_count != count) {
    return labels.Error(absl::StrCat("has ", label_count, " labels for ", count, " images"));
  }
  if (limit != 0) count = std::min<size_t>(count, limit);

  ImageSet set;
  set.rows = rows;
  set.columns = columns;
  set.pixels.resize(size_t{count} * rows * columns);
  set.labels.resize(count);
  CADRE_RETURN_IF_ERROR(images.Read(set.pixels.data(), set.pixels.size()));
  CADRE_RETURN_IF_ERROR(labels.Read(set.labels.data(), set.labels.size()));
  const auto wrong = std::find_if(set.labels.begin(), set.labels.end(),
                                  [](uint8_t label) { return label > kMaxLabel; });
  if (wrong != set.labels.end()) {
    return labels.Error(absl::StrCat("has label ", int{*wrong}, " at position ",
                                     wrong - set.labels.begin(), "; digits are 0 to 9"));
  }
  return set;
}

absl::Status WriteImageSet(const ImageSet& set, const std::string& directory,
                           const std::string& prefix) {
  std::string header;
  for (uint32_t number : {kImages, static_cast<uint32_t>(set.size()),
                          static_cast<uint32_t>(set.rows), static_cast<uint32_t>(set.columns)}) {
    AppendNumber(header, number);
  }
  CADRE_RETURN_IF_ERROR(
      WriteFile(directory + "/" + prefix + "-images-idx3-ubyte", header, set.pixels));
  header.clear();
  AppendNumber(header, kLabels);
  AppendNumber(header, static_cast<uint32_t>(set.size()));
  return WriteFile(directory + "/" + prefix + "-labels-idx1-ubyte", header, set.labels);
}

}  // namespace cadre::mnist
