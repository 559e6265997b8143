#include "agent/workers/worker_outputs.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace cadre::agent {
namespace {

constexpr uint8_t kStandardError = 2;

}  // namespace

WorkerOutputs::WorkerOutputs(const OutputOptions& options, Display& display)
    : prefix_template_(options.prefix_template),
      display_(display),
      filtered_stdout_(options.stdout_filters),
      filtered_stderr_(options.stderr_filters) {}

void WorkerOutputs::OpenFiltered(const std::string& directory) {
  if (directory.empty()) return;
  for (const bool of_stderr : {false, true}) {
    FilteredLines& lines = of_stderr ? filtered_stderr_ : filtered_stdout_;
    const std::string path =
        absl::StrCat(directory, of_stderr ? "/filtered_stderr.log" : "/filtered_stdout.log");
    if (lines.wanted() && !lines.Open(path)) display_.Line(absl::StrCat("cannot write ", path));
  }
}

void WorkerOutputs::KeepOnly(const std::set<uint32_t>& kept) {
  for (auto it = streams_.begin(); it != streams_.end();) {
    it = kept.count(it->first) != 0 ? std::next(it) : streams_.erase(it);
  }
}

void WorkerOutputs::Begin(const PrefixFields& of) {
  Flush(of.local_rank);
  const std::string prefix = LinePrefix(prefix_template_, of);
  streams_.insert_or_assign(of.local_rank,
                            Streams{LineAssembler(prefix), LineAssembler(prefix), LineAssembler()});
}

std::string WorkerOutputs::Add(uint32_t local_rank, const supervisor::OutputFrame& frame) {
  const auto found = streams_.find(local_rank);
  if (found == streams_.end()) return "";
  Streams& streams = found->second;
  if (frame.stream == kProgressStream) return streams.progress.Add(frame.bytes, frame.dropped);
  const bool to_stderr = frame.stream == kStandardError;
  LineAssembler& assembler = to_stderr ? streams.standard_error : streams.standard_output;
  const std::string lines = assembler.Add(frame.bytes, frame.dropped);
  Show(lines, assembler, to_stderr);
  return "";
}

void WorkerOutputs::Show(const std::string& lines, const LineAssembler& from, bool to_stderr) {
  if (lines.empty()) return;
  display_.WorkerLines(lines, to_stderr);
  (to_stderr ? filtered_stderr_ : filtered_stdout_).Add(lines, from.prefix().size());
}

void WorkerOutputs::Flush(Streams& streams) {
  for (const bool to_stderr : {false, true}) {
    LineAssembler& assembler = to_stderr ? streams.standard_error : streams.standard_output;
    Show(assembler.Finish(), assembler, to_stderr);
  }
}

void WorkerOutputs::Flush(uint32_t local_rank) {
  const auto found = streams_.find(local_rank);
  if (found != streams_.end()) Flush(found->second);
}

void WorkerOutputs::FlushAll() {
  for (auto& [local_rank, streams] : streams_) Flush(streams);
}

}  // namespace cadre::agent
