#include "jpeg.h"

#if __has_include(<jpeglib.h>)

#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

// <jpeglib.h> does not include what it needs, so <cstdio> comes first.
#include <jpeglib.h>
// This header needs the same.
#include <jerror.h>

namespace cadre::imagenet {
namespace {

// The library reports errors by longjmp(): no object between it and setjmp() may have a destructor.
struct Trap {
  jpeg_error_mgr manager;
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
  bool ends_early = false;
};

Trap& TrapOf(j_common_ptr info) { return *reinterpret_cast<Trap*>(info->err); }

[[noreturn]] void OnError(j_common_ptr info) {
  Trap& trap = TrapOf(info);
  (*info->err->format_message)(info, trap.text);
  std::longjmp(trap.back, 1);
}

// Odd but readable files pass without a warning, as in Python's template.
void OnMessage(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) TrapOf(info).ends_early = true;
}

jpeg_error_mgr* Arm(Trap& trap) {
  jpeg_error_mgr* const manager = jpeg_std_error(&trap.manager);
  manager->error_exit = OnError;
  manager->emit_message = OnMessage;
  return manager;
}

struct Decoder {
  jpeg_decompress_struct info;
  Trap trap;
};

// CMYK values say how much ink there is, or, in files of Adobe's programs, how little.
void TakeCmyk(const JSAMPLE* row, int width, bool adobe, uint8_t* out) {
  const auto light = [&](JSAMPLE ink) { return adobe ? ink : 255 - ink; };
  for (int x = 0; x < width; ++x, row += 4) {
    for (int channel = 0; channel < kChannels; ++channel) {
      *out++ = static_cast<uint8_t>(light(row[channel]) * light(row[3]) / 255);
    }
  }
}

void DecodeRows(jpeg_decompress_struct& info, Picture& picture) {
  const size_t row_bytes = size_t{kChannels} * info.output_width;
  const bool cmyk = info.out_color_space == JCS_CMYK;
  // The library owns and frees this memory.
  const JSAMPARRAY four =
      (*info.mem->alloc_sarray)(reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE,
                                info.output_width * static_cast<JDIMENSION>(4), 1);
  while (info.output_scanline < info.output_height) {
    uint8_t* const out = picture.points.data() + info.output_scanline * row_bytes;
    if (cmyk) {
      jpeg_read_scanlines(&info, four, 1);
      TakeCmyk(four[0], static_cast<int>(info.output_width), info.saw_Adobe_marker, out);
    } else {
      JSAMPROW row = out;
      jpeg_read_scanlines(&info, &row, 1);
    }
  }
}

// Returns false on an error, which is in decoder.trap.
bool Decode(Decoder& decoder, const unsigned char* bytes, size_t size, Picture& picture) {
  jpeg_decompress_struct& info = decoder.info;
  info.err = Arm(decoder.trap);
  if (setjmp(decoder.trap.back) != 0) return false;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, bytes, size);
  jpeg_read_header(&info, TRUE);
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  if (info.image_width > kMaxPictureSide || info.image_height > kMaxPictureSide) {
    std::snprintf(decoder.trap.text, sizeof(decoder.trap.text),
                  "it has sides of %u and %u points; expected at most %d", info.image_width,
                  info.image_height, kMaxPictureSide);
    return false;
  }
  jpeg_start_decompress(&info);
  picture.width = static_cast<int>(info.output_width);
  picture.height = static_cast<int>(info.output_height);
  picture.points.resize(size_t{kChannels} * info.output_width * info.output_height);
  DecodeRows(info, picture);
  jpeg_finish_decompress(&info);
  return true;
}

struct Encoder {
  jpeg_compress_struct info;
  Trap trap;
};

bool Encode(Encoder& encoder, const Picture& picture, std::FILE* file, int quality) {
  jpeg_compress_struct& info = encoder.info;
  info.err = Arm(encoder.trap);
  if (setjmp(encoder.trap.back) != 0) return false;
  jpeg_create_compress(&info);
  jpeg_stdio_dest(&info, file);
  info.image_width = static_cast<JDIMENSION>(picture.width);
  info.image_height = static_cast<JDIMENSION>(picture.height);
  info.input_components = kChannels;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    // The library only reads the row.
    JSAMPROW row = const_cast<JSAMPROW>(picture.points.data()) +
                   size_t{kChannels} * info.image_width * info.next_scanline;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

Result<Picture> ReadJpeg(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFoundError(path + ": cannot be read");
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  Picture picture;
  Decoder decoder = {};
  const bool decoded =
      Decode(decoder, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), picture);
  jpeg_destroy_decompress(&decoder.info);
  if (!decoded) {
    return InvalidArgumentError(path +
                                ": not a JPEG picture that can be read: " + decoder.trap.text);
  }
  if (decoder.trap.ends_early) return InvalidArgumentError(path + ": ends within the picture");
  return picture;
}

Status WriteJpeg(const Picture& picture, const std::string& path, int quality) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return UnavailableError(path + ": cannot be written: " + std::strerror(errno));
  }
  Encoder encoder = {};
  const bool encoded = Encode(encoder, picture, file, quality);
  jpeg_destroy_compress(&encoder.info);
  const bool closed = std::fclose(file) == 0;
  if (!encoded) return UnavailableError(path + ": cannot be written: " + encoder.trap.text);
  return closed ? OkStatus() : UnavailableError(path + ": cannot be written");
}

}  // namespace cadre::imagenet

#else

namespace cadre::imagenet {
namespace {

Status Without(const std::string& path) {
  return UnimplementedError(path + ": this program was built without libjpeg-turbo; install its " +
                            "headers (libjpeg62-turbo-dev) and build it again, or take .ppm files");
}

}  // namespace

Result<Picture> ReadJpeg(const std::string& path) { return Without(path); }
Status WriteJpeg(const Picture&, const std::string& path, int) { return Without(path); }

}  // namespace cadre::imagenet

#endif
