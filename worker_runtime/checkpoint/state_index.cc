#include "worker_runtime/checkpoint/state_index.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "worker_runtime/checkpoint/durable_file.h"

namespace cadre::checkpoint {
namespace {

constexpr char kMagic[] = "cadre sharded state ";
constexpr int kFormat = 1;
constexpr size_t kLastLineBytes = 16;
// Limits the data of a part, so that sums are far from overflow.
constexpr uint64_t kMaxDataBytes = uint64_t{1} << 60;
constexpr int kMaxRanks = 1 << 20;
constexpr char kNoChecksum[] = "-";
constexpr char kNoShape[] = "-";

void AppendPart(const IndexPart& part, std::string* body) {
  absl::StrAppend(body, "part ", part.rank, " ", part.head_bytes, " ", part.ranges.size(), "\n");
  for (const IndexRange& range : part.ranges) {
    absl::StrAppend(body, range.tensor, " ", range.begin, " ", range.count, " ");
    if (range.crc32c.has_value()) {
      absl::StrAppendFormat(body, "%08x\n", *range.crc32c);
    } else {
      absl::StrAppend(body, kNoChecksum, "\n");
    }
  }
}

// Iterates over the lines of a body.
class Lines {
 public:
  explicit Lines(absl::string_view text) : text_(text) {}

  bool done() const { return text_.empty(); }
  absl::string_view Next() {
    const size_t end = text_.find('\n');
    line_ = text_.substr(0, end);
    text_.remove_prefix(end == absl::string_view::npos ? text_.size() : end + 1);
    ++number_;
    return line_;
  }
  // Returns an error for the last line: it is not `expected`.
  Status Not(absl::string_view expected) const {
    constexpr size_t kShown = 60;
    return DataLossError(absl::StrCat("line ", number_, " is '",
                                      absl::CHexEscape(line_.substr(0, kShown)),
                                      "', and should be ", expected));
  }

 private:
  absl::string_view text_;
  absl::string_view line_;
  // The body begins at line 2.
  int number_ = 1;
};

// Reads a line "NAME NUMBER" whose number is at most `most`.
Status ReadNumber(Lines& lines, absl::string_view name, int64_t most, int64_t* value) {
  absl::string_view line = lines.Next();
  if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") &&
      absl::SimpleAtoi(line, value) && *value >= 0 && *value <= most) {
    return OkStatus();
  }
  return lines.Not(absl::StrCat("'", name, " NUMBER'"));
}

bool ReadShape(absl::string_view text, std::vector<int64_t>* shape) {
  if (text == kNoShape) return true;
  for (const absl::string_view size : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(size, &shape->emplace_back())) return false;
  }
  return true;
}

Result<IndexTensor> ReadTensor(Lines& lines) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(lines.Next(), absl::MaxSplits(' ', 3));
  IndexTensor tensor;
  if (words.size() == 4 && !words[0].empty() && absl::SimpleAtoi(words[1], &tensor.element_bytes) &&
      tensor.element_bytes > 0 && tensor.element_bytes <= kMaxElementBytes &&
      ReadShape(words[2], &tensor.shape) && !words[3].empty() &&
      absl::CUnescape(words[3], &tensor.name)) {
    const std::optional<int64_t> elements = ElementsOf(tensor.shape);
    if (elements.has_value() &&
        static_cast<uint64_t>(*elements) <= kMaxDataBytes / tensor.element_bytes) {
      tensor.type = std::string(words[0]);
      tensor.elements = *elements;
      return tensor;
    }
  }
  return lines.Not("'TYPE BYTES SHAPE NAME' of a tensor");
}

bool ReadChecksum(absl::string_view text, std::optional<uint32_t>* crc32c) {
  if (text == kNoChecksum) return true;
  uint32_t value = 0;
  if (text.size() != 8 || !absl::SimpleHexAtoi(text, &value)) return false;
  *crc32c = value;
  return true;
}

Status ReadRange(Lines& lines, const std::vector<IndexTensor>& tensors, IndexPart* part) {
  const std::vector<absl::string_view> words = absl::StrSplit(lines.Next(), ' ');
  IndexRange range;
  if (words.size() != 4 || !absl::SimpleAtoi(words[0], &range.tensor) ||
      range.tensor >= tensors.size() || !absl::SimpleAtoi(words[1], &range.begin) ||
      !absl::SimpleAtoi(words[2], &range.count) || !ReadChecksum(words[3], &range.crc32c)) {
    return lines.Not("'TENSOR BEGIN COUNT CHECKSUM' of a range");
  }
  const IndexTensor& tensor = tensors[range.tensor];
  if (range.begin < 0 || range.count <= 0 || range.begin > tensor.elements ||
      range.count > tensor.elements - range.begin) {
    return lines.Not(absl::StrCat("a range of the ", tensor.elements, " elements of '",
                                  absl::CHexEscape(tensor.name), "'"));
  }
  range.offset = part->data_bytes;
  part->data_bytes += static_cast<uint64_t>(range.count) * tensor.element_bytes;
  if (part->data_bytes > kMaxDataBytes) return lines.Not("of a part that fits on a disk");
  part->ranges.push_back(range);
  return OkStatus();
}

Status ReadPart(Lines& lines, StateIndex* index) {
  const std::vector<absl::string_view> words = absl::StrSplit(lines.Next(), ' ');
  IndexPart part;
  uint64_t ranges = 0;
  const bool read =
      words.size() == 4 && words[0] == "part" && absl::SimpleAtoi(words[1], &part.rank) &&
      absl::SimpleAtoi(words[2], &part.head_bytes) && absl::SimpleAtoi(words[3], &ranges);
  if (!read || part.rank < 0 || part.rank >= index->ranks || part.head_bytes > kMaxIndexBytes ||
      (!index->parts.empty() && part.rank <= index->parts.back().rank)) {
    return lines.Not(absl::StrCat("'part RANK BYTES RANGES' of a rank below ", index->ranks,
                                  " that comes after those before"));
  }
  for (uint64_t i = 0; i < ranges; ++i) {
    RETURN_IF_ERROR(ReadRange(lines, index->tensors, &part));
  }
  index->parts.push_back(std::move(part));
  return OkStatus();
}

Result<StateIndex> ReadBody(absl::string_view body) {
  Lines lines(body);
  StateIndex index;
  int64_t ranks = 0, tensors = 0;
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  RETURN_IF_ERROR(ReadNumber(lines, "step", kAny, &index.step));
  RETURN_IF_ERROR(ReadNumber(lines, "ranks", kMaxRanks, &ranks));
  RETURN_IF_ERROR(ReadNumber(lines, "tensors", kAny, &tensors));
  index.ranks = static_cast<int>(ranks);
  std::set<std::string> names;
  for (int64_t i = 0; i < tensors; ++i) {
    ASSIGN_OR_RETURN(IndexTensor tensor, ReadTensor(lines));
    if (!names.insert(tensor.name).second) return lines.Not("another tensor than those before");
    index.tensors.push_back(std::move(tensor));
  }
  while (!lines.done()) RETURN_IF_ERROR(ReadPart(lines, &index));
  return index;
}

}  // namespace

std::optional<int64_t> ElementsOf(const std::vector<int64_t>& shape) {
  // If one size is 0 the product is 0, however large the others are.
  constexpr int64_t kMost = int64_t{1} << 60;
  int64_t elements = 1;
  bool none = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    none = none || size == 0;
    if (!none && elements > kMost / size) return std::nullopt;
    elements *= none ? 1 : size;
  }
  return none ? 0 : elements;
}

std::string SealIndex(absl::string_view body) {
  std::string text = absl::StrFormat("%s%d %012d\n", kMagic, kFormat,
                                     kFirstLineBytes + body.size() + kLastLineBytes);
  absl::StrAppend(&text, body);
  absl::StrAppendFormat(&text, "crc32c %08x\n", ExtendCrc32c(0, text));
  return text;
}

std::string EncodeIndex(const StateIndex& index) {
  std::string body = absl::StrCat("step ", index.step, "\nranks ", index.ranks, "\ntensors ",
                                  index.tensors.size(), "\n");
  for (const IndexTensor& tensor : index.tensors) {
    absl::StrAppend(&body, tensor.type, " ", tensor.element_bytes, " ",
                    tensor.shape.empty() ? kNoShape : absl::StrJoin(tensor.shape, ","), " ",
                    absl::CEscape(tensor.name), "\n");
  }
  for (const IndexPart& part : index.parts) AppendPart(part, &body);
  return SealIndex(body);
}

Result<uint64_t> IndexBytes(absl::string_view first_line) {
  absl::string_view rest = first_line.substr(0, kFirstLineBytes);
  if (!absl::ConsumePrefix(&rest, kMagic)) {
    return InvalidArgumentError(absl::StrCat("it begins with '",
                                             absl::CHexEscape(first_line.substr(0, 20)),
                                             "', and should begin with '", kMagic, "'"));
  }
  const std::vector<absl::string_view> words = absl::StrSplit(rest, ' ');
  int format = 0;
  if (absl::SimpleAtoi(words[0], &format) && format > kFormat) {
    return FailedPreconditionError(absl::StrCat(
        "it is of format ", format, ", and this version of Cadre reads format ", kFormat));
  }
  uint64_t bytes = 0;
  if (format != kFormat || words.size() != 2 || !absl::ConsumeSuffix(&rest, "\n") ||
      !absl::SimpleAtoi(rest.substr(2), &bytes) || bytes < kFirstLineBytes + kLastLineBytes ||
      bytes > kMaxIndexBytes) {
    return DataLossError(absl::StrCat("line 1 is '",
                                      absl::CHexEscape(first_line.substr(0, kFirstLineBytes)),
                                      "', and should be '", kMagic, kFormat, " BYTES'"));
  }
  return bytes;
}

Result<StateIndex> DecodeIndex(absl::string_view text) {
  ASSIGN_OR_RETURN(const uint64_t bytes, IndexBytes(text));
  if (text.size() != bytes) {
    return DataLossError(absl::StrCat("it has ", text.size(), " bytes, and should have ", bytes));
  }
  const absl::string_view body = text.substr(0, text.size() - kLastLineBytes);
  if (text.substr(body.size()) != absl::StrFormat("crc32c %08x\n", ExtendCrc32c(0, body))) {
    return DataLossError("it is not what was written (the checksum differs)");
  }
  return ReadBody(body.substr(kFirstLineBytes));
}

Status CheckComplete(const StateIndex& index) {
  if (index.parts.size() != static_cast<size_t>(index.ranks)) {
    return InvalidArgumentError(
        absl::StrCat("it has the parts of ", index.parts.size(), " of ", index.ranks, " ranks"));
  }
  struct Held {
    int64_t begin;
    int64_t end;
    int rank;
  };
  std::vector<std::vector<Held>> held(index.tensors.size());
  for (const IndexPart& part : index.parts) {
    for (const IndexRange& range : part.ranges) {
      held[range.tensor].push_back({range.begin, range.begin + range.count, part.rank});
    }
  }
  for (size_t t = 0; t < held.size(); ++t) {
    const IndexTensor& tensor = index.tensors[t];
    std::sort(held[t].begin(), held[t].end(),
              [](const Held& a, const Held& b) { return a.begin < b.begin; });
    int64_t next = 0;
    int last = 0;
    for (const Held& one : held[t]) {
      if (one.begin < next) {
        return InvalidArgumentError(absl::StrCat("element ", one.begin, " of tensor '", tensor.name,
                                                 "' is in the parts of rank ", last, " and rank ",
                                                 one.rank));
      }
      if (one.begin > next) break;
      next = one.end;
      last = one.rank;
    }
    if (next < tensor.elements) {
      return InvalidArgumentError(
          absl::StrCat("element ", next, " of tensor '", tensor.name, "' is in no rank's part"));
    }
  }
  return OkStatus();
}

namespace {

// The tensors of an index, by name.
class Tensors {
 public:
  explicit Tensors(StateIndex* index) : index_(*index) {}

  // INVALID_ARGUMENT: a tensor of that name with another type or shape is there already.
  Result<size_t> Place(IndexTensor tensor) {
    const auto [found, is_new] = places_.emplace(tensor.name, index_.tensors.size());
    if (is_new) {
      index_.tensors.push_back(std::move(tensor));
      return found->second;
    }
    const IndexTensor& before = index_.tensors[found->second];
    if (before.type == tensor.type && before.element_bytes == tensor.element_bytes &&
        before.shape == tensor.shape) {
      return found->second;
    }
    return InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' is ", Describe(tensor),
                                             ", and was ", Describe(before), " before"));
  }

 private:
  static std::string Describe(const IndexTensor& tensor) {
    return absl::StrCat(tensor.type, " [", absl::StrJoin(tensor.shape, ", "), "]");
  }

  StateIndex& index_;
  std::map<std::string, size_t> places_;
};

Status CheckRange(const ShardedRange& range, int64_t elements) {
  if (range.begin >= 0 && range.count >= 0 && range.begin <= elements &&
      range.count <= elements - range.begin && range.data != nullptr) {
    return OkStatus();
  }
  if (range.data == nullptr) {
    return InvalidArgumentError(
        absl::StrCat("the data of tensor '", range.tensor.name, "' is a null pointer"));
  }
  return InvalidArgumentError(absl::StrCat(range.count, " elements from element ", range.begin,
                                           " on are not in tensor '", range.tensor.name,
                                           "', which has ", elements, " elements"));
}

Result<IndexTensor> TensorOf(const ShardedTensor& tensor) {
  const std::optional<int64_t> elements = ElementsOf(tensor.shape);
  if (!elements.has_value() || tensor.name.empty() || tensor.type.empty() ||
      tensor.type.find_first_of(" \n") != std::string::npos || tensor.element_bytes == 0 ||
      tensor.element_bytes > kMaxElementBytes) {
    return InvalidArgumentError(absl::StrCat("tensor '", tensor.name,
                                             "' has no name, no type of one word, no elements of ",
                                             "1 to ", kMaxElementBytes, " bytes, or no shape"));
  }
  return IndexTensor{tensor.name, tensor.type, tensor.element_bytes, tensor.shape, *elements};
}

}  // namespace

std::string PartName(int rank) { return absl::StrCat("part_", rank); }

Result<StatePieces> PiecesOf(const ShardedState& state, int64_t step, bool all) {
  StatePieces pieces;
  pieces.index.step = step;
  pieces.index.ranks = state.ranks();
  Tensors tensors(&pieces.index);
  IndexPart part;
  part.rank = state.rank();
  for (const ShardedRange& range : state.ranges()) {
    if (range.elsewhere && !all) continue;
    ASSIGN_OR_RETURN(IndexTensor tensor, TensorOf(range.tensor));
    RETURN_IF_ERROR(CheckRange(range, tensor.elements));
    const uint64_t bytes = static_cast<uint64_t>(range.count) * tensor.element_bytes;
    ASSIGN_OR_RETURN(const size_t place, tensors.Place(std::move(tensor)));
    part.ranges.push_back({place, range.begin, range.count, std::nullopt, part.data_bytes});
    part.data_bytes += bytes;
    pieces.data.push_back({range.data, bytes});
  }
  pieces.index.parts.push_back(std::move(part));
  return pieces;
}

void AddChecksums(StateIndex& index, absl::string_view data) {
  for (IndexRange& range : index.parts[0].ranges) {
    const uint64_t bytes =
        static_cast<uint64_t>(range.count) * index.tensors[range.tensor].element_bytes;
    range.crc32c = ExtendCrc32c(0, data.substr(range.offset, bytes));
  }
}

Result<StateIndex> ReadIndex(const FileReader& file, uint64_t* bytes) {
  const auto named = [&file](const Status& status) {
    return Status(status.code(), absl::StrCat(file.path(), ": ", status.message()));
  };
  std::string text(std::min<uint64_t>(file.bytes(), kFirstLineBytes), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, &text[0], text.size()));
  const Result<uint64_t> said = IndexBytes(text);
  if (!said.ok()) return named(said.status());
  text.resize(std::min(file.bytes(), *said));
  RETURN_IF_ERROR(file.ReadAt(0, &text[0], text.size()));
  Result<StateIndex> index = DecodeIndex(text);
  if (!index.ok()) return named(index.status());
  *bytes = *said;
  return index;
}

Result<StateIndex> ReadHead(const std::string& folder, int rank) {
  const std::string path = absl::StrCat(folder, "/", PartName(rank));
  ASSIGN_OR_RETURN(const std::unique_ptr<FileReader> file, FileReader::Open(path));
  uint64_t bytes = 0;
  ASSIGN_OR_RETURN(StateIndex index, ReadIndex(*file, &bytes));
  if (index.parts.size() != 1 || index.parts[0].rank != rank) {
    return DataLossError(absl::StrCat(path, ": it is not the part of rank ", rank));
  }
  IndexPart& part = index.parts[0];
  part.head_bytes = bytes;
  if (file->bytes() == part.head_bytes + part.data_bytes) return index;
  return DataLossError(absl::StrCat(path, " has ", file->bytes(), " bytes, and should have ",
                                    part.head_bytes + part.data_bytes));
}

Result<StateIndex> MergeHeads(std::vector<StateIndex> heads) {
  StateIndex merged;
  merged.step = heads[0].step;
  merged.ranks = static_cast<int>(heads.size());
  Tensors tensors(&merged);
  for (StateIndex& head : heads) {
    IndexPart& part = head.parts[0];
    const std::string who = absl::StrCat("rank ", part.rank, ": ");
    if (head.step != merged.step || head.ranks != merged.ranks) {
      return InvalidArgumentError(absl::StrCat(who, "it saves step ", head.step, " of ", head.ranks,
                                               " ranks, and rank 0 step ", merged.step, " of ",
                                               merged.ranks));
    }
    std::vector<size_t> places;
    for (IndexTensor& tensor : head.tensors) {
      const Result<size_t> place = tensors.Place(std::move(tensor));
      if (!place.ok()) {
        return InvalidArgumentError(absl::StrCat(who, place.status().message()));
      }
      places.push_back(*place);
    }
    for (IndexRange& range : part.ranges) range.tensor = places[range.tensor];
    merged.parts.push_back(std::move(part));
  }
  RETURN_IF_ERROR(CheckComplete(merged));
  return merged;
}

}  // namespace cadre::checkpoint
