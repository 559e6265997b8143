#include "agent/evidence/python_stack.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cadre::agent {
namespace {

// faulthandler itself stops at 100.
constexpr size_t kMaxFrames = 128;

// Of torch.distributed and its groups. "wait" is a Work's.
constexpr const char* kCollectives[] = {"all_reduce",
                                        "all_gather",
                                        "all_gather_into_tensor",
                                        "_all_gather_base",
                                        "all_gather_object",
                                        "reduce_scatter",
                                        "reduce_scatter_tensor",
                                        "broadcast",
                                        "broadcast_object_list",
                                        "reduce",
                                        "scatter",
                                        "scatter_object_list",
                                        "gather",
                                        "gather_object",
                                        "all_to_all",
                                        "all_to_all_single",
                                        "barrier",
                                        "monitored_barrier",
                                        "send",
                                        "recv",
                                        "batch_isend_irecv",
                                        "wait",
                                        "init_process_group",
                                        "new_group",
                                        "destroy_process_group"};
// DistributedDataParallel's own, in which it exchanges buffers and shapes.
constexpr const char* kDataParallel[] = {"__init__", "forward", "_pre_forward", "_sync_buffers"};
// What waits for a device or a handle and is written in C, so that it has no frame of its own.
constexpr const char* kWaitingCalls[] = {".item(", ".cpu(",     ".tolist(", "synchronize(",
                                         ".wait(", ".to(\"cpu", ".to('cpu"};

template <typename Names>
bool IsOneOf(const Names& names, absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::string Text(const PythonFrame& frame) {
  return absl::StrCat(FileName(frame), ":", frame.line, " in ", frame.function);
}

// The call of torch in which this frame waits for other ranks; empty: it is none.
std::string WaitOf(const PythonFrame& frame) {
  if (absl::StrContains(frame.file, "/torch/distributed/") &&
      IsOneOf(kCollectives, frame.function)) {
    return frame.function;
  }
  // Cadre's own module, also as a backend of PyTorch's.
  if (absl::StrContains(frame.file, "/cadre/_") && IsOneOf(kCollectives, frame.function)) {
    return frame.function;
  }
  if (absl::EndsWith(frame.file, "torch/nn/parallel/distributed.py") &&
      IsOneOf(kDataParallel, frame.function)) {
    return absl::StrCat("DistributedDataParallel.", frame.function);
  }
  // Its hooks exchange gradients; that the engine still computes cannot be told from here.
  if (frame.function == "_engine_run_backward" ||
      (frame.function == "backward" && absl::EndsWith(frame.file, "torch/autograd/__init__.py"))) {
    return "backward";
  }
  return "";
}

}  // namespace

std::vector<PythonFrame> MainThreadOf(absl::string_view text) {
  std::vector<PythonFrame> frames;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    // The main thread is a dump's last.
    if (absl::StartsWith(line, "Thread 0x") || absl::StartsWith(line, "Current thread 0x")) {
      frames.clear();
      continue;
    }
    std::optional<PythonFrame> frame = rpc::ParsePythonFrame(line);
    if (frame.has_value() && frames.size() < kMaxFrames) frames.push_back(*std::move(frame));
  }
  return frames;
}

PythonPlace PlaceOf(const std::vector<PythonFrame>& frames, const SourceReader& source) {
  PythonPlace place;
  if (frames.empty()) return place;
  rpc::OwnPython program;
  std::for_each(frames.rbegin(), frames.rend(),
                [&](const PythonFrame& frame) { program.See(frame); });
  const auto own = std::find_if(frames.begin(), frames.end(),
                                [&](const PythonFrame& frame) { return program.Has(frame.file); });
  std::string line;
  if (own != frames.end()) {
    place.where = Text(*own);
    line = source(own->file, own->line);
  }
  place.activity = v1::IN_OWN_CODE;
  place.what = own != frames.end() ? line : frames.front().function;
  for (auto frame = frames.begin(); frame != own; ++frame) {
    if (absl::StartsWith(frame->file, "<frozen importlib")) {
      place.activity = v1::IMPORTING;
      return place;
    }
    const std::string wait = WaitOf(*frame);
    if (!wait.empty()) {
      place.activity = v1::IN_COLLECTIVE;
      place.what = wait;
      return place;
    }
    if (absl::StrContains(frame->file, "/torch/utils/data/")) {
      place.activity = v1::IN_DATA_LOADER;
      return place;
    }
  }
  const bool waits = own == frames.begin() &&
                     std::any_of(std::begin(kWaitingCalls), std::end(kWaitingCalls),
                                 [&](const char* call) { return absl::StrContains(line, call); });
  if (waits) place.activity = v1::IN_COLLECTIVE;
  return place;
}

}  // namespace cadre::agent
