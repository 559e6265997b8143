#include "agent/supervisor/frames.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr size_t kLengthBytes = 4;

// One list of fields per frame serves both directions: `Io` is Writer or Parser. The order is the
// wire format.
template <typename Io>
void Fields(Io& io, StartFrame& f) {
  io(f.generation, f.local_rank, f.argv, f.environment, f.working_dir, f.stdout_path, f.stderr_path,
     f.forward_stdout, f.forward_stderr, f.error_file, f.cpus);
}
template <typename Io>
void Fields(Io& io, StopFrame& f) {
  io(f.generation, f.grace_ms);
}
template <typename Io>
void Fields(Io& io, SignalFrame& f) {
  io(f.generation, f.signal);
}
template <typename Io>
void Fields(Io& io, ReadyFrame& f) {
  io(f.pid, f.cgroup, f.degraded);
}
template <typename Io>
void Fields(Io& io, StartedFrame& f) {
  io(f.generation, f.local_rank, f.pid);
}
template <typename Io>
void Fields(Io& io, ExitedFrame& f) {
  io(f.generation, f.local_rank, f.pid, f.exit_code, f.signal, f.core_dumped, f.exec_errno,
     f.exec_step, f.out_of_memory, f.last_lines, f.error_json);
}
template <typename Io>
void Fields(Io& io, OutputFrame& f) {
  io(f.generation, f.local_rank, f.stream, f.dropped, f.bytes);
}
template <typename Io>
void Fields(Io& io, AllGoneFrame& f) {
  io(f.generation);
}
template <typename Io>
void Fields(Io& io, HoldFrame& f) {
  io(f.generation, f.until_us);
}
template <typename Io>
void Fields(Io& io, KeepFrame& f) {
  io(f.keep_ms, f.socket_path, f.token);
}
template <typename Io>
void Fields(Io& io, GoodbyeFrame&) {
  io();
}
template <typename Io>
void Fields(Io& io, AdoptFrame& f) {
  io(f.token);
}
template <typename Io>
void Fields(Io& io, AdoptedFrame& f) {
  io(f.id, f.generation, f.workers, f.alone_ms, f.hold_until_us);
}

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  template <typename... T>
  void operator()(T&... fields) {
    (Field(fields), ...);
  }

 private:
  template <typename T>
  std::enable_if_t<std::is_integral_v<T>> Field(T value) {
    const auto bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<char>(bits >> (8 * i)));
  }
  void Field(const std::string& value) {
    Field(static_cast<uint32_t>(value.size()));
    out_.append(value);
  }
  template <typename T>
  void Field(const std::vector<T>& values) {
    Field(static_cast<uint32_t>(values.size()));
    for (const T& value : values) Field(value);
  }

  std::string& out_;
};

class Parser {
 public:
  explicit Parser(absl::string_view in) : in_(in) {}

  template <typename... T>
  void operator()(T&... fields) {
    (Field(fields), ...);
  }
  // Whether every field was there and nothing is left over.
  bool Finished() const { return ok_ && in_.empty(); }

 private:
  template <typename T>
  std::enable_if_t<std::is_integral_v<T>> Field(T& value) {
    if (in_.size() < sizeof(T)) ok_ = false;
    if (!ok_) return;
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= uint64_t{static_cast<unsigned char>(in_[i])} << (8 * i);
    }
    value = static_cast<T>(bits);
    in_.remove_prefix(sizeof(T));
  }
  void Field(std::string& value) {
    uint32_t size = 0;
    Field(size);
    if (size > in_.size()) ok_ = false;
    if (!ok_) return;
    value.assign(in_.data(), size);
    in_.remove_prefix(size);
  }
  template <typename T>
  void Field(std::vector<T>& values) {
    uint32_t count = 0;
    Field(count);
    // Every element takes four bytes at least, so a lying count cannot make us allocate.
    if (uint64_t{count} * 4 > in_.size()) ok_ = false;
    if (!ok_) return;
    values.resize(count);
    for (T& value : values) Field(value);
  }

  absl::string_view in_;
  bool ok_ = true;
};

template <size_t index = 0>
bool Parse(size_t type, absl::string_view payload, Frame& frame) {
  if constexpr (index < std::variant_size_v<Frame>) {
    if (type != index) return Parse<index + 1>(type, payload, frame);
    Parser parser(payload);
    Fields(parser, frame.emplace<index>());
    return parser.Finished();
  }
  return false;
}

uint32_t LengthAt(const char* bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return length;
}

}  // namespace

std::string EncodeFrame(const Frame& frame) {
  std::string out(kLengthBytes, '\0');
  out.push_back(static_cast<char>(frame.index() + 1));
  Writer writer(out);
  // Fields() takes what it may also fill in; the writer only reads.
  std::visit([&](auto& fields) { Fields(writer, fields); }, const_cast<Frame&>(frame));
  const auto length = static_cast<uint32_t>(out.size() - kLengthBytes);
  for (size_t i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(length >> (8 * i));
  return out;
}

void FrameReader::Append(absl::string_view bytes) {
  // Moving the rest to the front only when it is the smaller part keeps this linear.
  if (used_ > 0 && used_ >= buffer_.size() / 2) {
    buffer_.erase(0, used_);
    used_ = 0;
  }
  buffer_.append(bytes.data(), bytes.size());
}

absl::StatusOr<std::optional<Frame>> FrameReader::Next() {
  const size_t available = buffer_.size() - used_;
  if (available < kLengthBytes) return std::optional<Frame>();
  const uint32_t length = LengthAt(buffer_.data() + used_);
  if (length == 0 || length > kMaxFrameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of ", length, " bytes; expected 1 to ", kMaxFrameBytes));
  }
  if (available < kLengthBytes + length) return std::optional<Frame>();
  const char* body = buffer_.data() + used_ + kLengthBytes;
  const auto type = static_cast<unsigned char>(body[0]);
  Frame frame;
  if (type == 0 || !Parse(type - 1u, absl::string_view(body + 1, length - 1), frame)) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of type ", static_cast<unsigned>(type), " and ", length,
                     " bytes: the type is unknown or its fields do not add up"));
  }
  used_ += kLengthBytes + length;
  return std::optional<Frame>(std::move(frame));
}

}  // namespace cadre
