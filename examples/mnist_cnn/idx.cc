#include "idx.h"

#include <unistd.h>
#if __has_include(<zlib.h>)
#include <zlib.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "cadre/status_macros.h"

namespace cadre::mnist {
namespace {

// The third byte of the magic number says "unsigned bytes", the fourth how many dimensions follow.
constexpr uint32_t kImages = 0x00000803;
constexpr uint32_t kLabels = 0x00000801;
// A gzip file begins with these bytes.
constexpr uint32_t kGzip = 0x1f8b;
constexpr uint32_t kMaxItems = 10 * 1000 * 1000;
constexpr uint32_t kMaxSide = 4096;
constexpr uint8_t kMaxLabel = 9;

#if !__has_include(<zlib.h>)
// Without zlib only plain files can be read.
using gzFile = std::FILE*;
gzFile gzopen(const char* path, const char* mode) { return std::fopen(path, mode); }
int gzclose(gzFile file) { return std::fclose(file); }
int gzread(gzFile file, void* target, unsigned bytes) {
  const size_t got = std::fread(target, 1, bytes, file);
  return got == 0 && std::ferror(file) != 0 ? -1 : static_cast<int>(got);
}
#endif

// zlib reads plain files too.
class Reader {
 public:
  static Result<Reader> Open(const std::string& path) {
    for (const std::string& candidate : {path, path + ".gz"}) {
      gzFile file = gzopen(candidate.c_str(), "rbe");
      if (file != nullptr) return Reader(file, candidate);
      if (errno != ENOENT) {
        return UnavailableError(candidate + ": " + std::strerror(errno));
      }
    }
    return NotFoundError(path + ": no such file, neither plain nor with .gz");
  }

  Status Read(void* target, size_t bytes) {
    auto* at = static_cast<unsigned char*>(target);
    while (bytes > 0) {
      const auto chunk = static_cast<unsigned>(std::min<size_t>(bytes, size_t{1} << 24));
      const int got = gzread(file_.get(), at, chunk);
      if (got < 0) return Error("is damaged");
      if (got == 0) return Error("ends too early");
      at += got;
      bytes -= got;
    }
    return OkStatus();
  }

  Result<uint32_t> ReadNumber() {
    unsigned char bytes[4];
    CADRE_RETURN_IF_ERROR(Read(bytes, sizeof(bytes)));
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
  }

  Status Expect(uint32_t magic, const char* what) {
    CADRE_ASSIGN_OR_RETURN(const uint32_t found, ReadNumber());
    if (found == magic) return OkStatus();
    if (found >> 16 == kGzip) return Error("is compressed, and zlib was not there at build time");
    char text[100];
    std::snprintf(text, sizeof(text),
                  "is not an IDX file of %s: it begins with %08x instead of %08x", what, found,
                  magic);
    return Error(text);
  }

  Status Error(const std::string& what) const { return DataLossError(path_ + " " + what); }

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

Status WriteFile(const std::string& path, const std::string& header,
                 const std::vector<uint8_t>& body) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(header.data(), header.size());
  file.write(reinterpret_cast<const char*>(body.data()), body.size());
  file.close();
  if (!file) return UnavailableError(path + ": cannot write");
  return OkStatus();
}

}  // namespace

Result<ImageSet> ReadImageSet(const std::string& directory, const std::string& prefix,
                              size_t limit) {
  CADRE_ASSIGN_OR_RETURN(Reader images,
                         Reader::Open(directory + "/" + prefix + "-images-idx3-ubyte"));
  CADRE_RETURN_IF_ERROR(images.Expect(kImages, "images"));
  CADRE_ASSIGN_OR_RETURN(uint32_t count, images.ReadNumber());
  CADRE_ASSIGN_OR_RETURN(const uint32_t rows, images.ReadNumber());
  CADRE_ASSIGN_OR_RETURN(const uint32_t columns, images.ReadNumber());
  if (count == 0 || count > kMaxItems || rows == 0 || rows > kMaxSide || columns == 0 ||
      columns > kMaxSide) {
    return images.Error("announces " + std::to_string(count) + " images of " +
                        std::to_string(rows) + " by " + std::to_string(columns) +
                        ", which cannot be right");
  }
  CADRE_ASSIGN_OR_RETURN(Reader labels,
                         Reader::Open(directory + "/" + prefix + "-labels-idx1-ubyte"));
  CADRE_RETURN_IF_ERROR(labels.Expect(kLabels, "labels"));
  CADRE_ASSIGN_OR_RETURN(const uint32_t label_count, labels.ReadNumber());
  if (label_count != count) {
    return labels.Error("has " + std::to_string(label_count) + " labels for " +
                        std::to_string(count) + " images");
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
    return labels.Error("has label " + std::to_string(*wrong) + " at position " +
                        std::to_string(wrong - set.labels.begin()) + "; digits are 0 to 9");
  }
  return set;
}

Status WriteImageSet(const ImageSet& set, const std::string& directory, const std::string& prefix) {
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
