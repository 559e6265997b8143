#include "agent/workers/worker_outputs.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

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
  const auto returns = [this](bool to_stderr) {
    return display_.DrawsCurrentLines(to_stderr) ? LineAssembler::Returns::kOverwrites
                                                 : LineAssembler::Returns::kKept;
  };
  streams_.insert_or_assign(of.local_rank,
                            Streams{LineAssembler(prefix, returns(false)),
                                    LineAssembler(prefix, returns(true)), LineAssembler()});
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
  ShowCurrent(local_rank, streams);
  return "";
}

void WorkerOutputs::ShowCurrent(uint32_t local_rank, Streams& streams) {
  // Bars go to standard error as a rule.
  const LineAssembler& from =
      streams.standard_error.current().empty() ? streams.standard_output : streams.standard_error;
  const bool has = !from.current().empty();
  if (!has && !streams.has_current) return;
  streams.has_current = has;
  display_.CurrentLine(local_rank, has ? absl::StrCat(from.prefix(), from.current()) : "");
}

void WorkerOutputs::Show(const std::string& lines, const LineAssembler& from, bool to_stderr) {
  if (lines.empty()) return;
  display_.WorkerLines(lines, to_stderr);
  FilteredLines& filtered = to_stderr ? filtered_stderr_ : filtered_stdout_;
  if (!filtered.wanted()) return;
  // Each state of a progress bar is a line there.
  filtered.Add(absl::StrReplaceAll(lines, {{"\r", "\n"}}), from.prefix().size());
}

void WorkerOutputs::Flush(uint32_t local_rank, Streams& streams) {
  for (const bool to_stderr : {false, true}) {
    LineAssembler& assembler = to_stderr ? streams.standard_error : streams.standard_output;
    Show(assembler.Finish(), assembler, to_stderr);
  }
  ShowCurrent(local_rank, streams);
}

void WorkerOutputs::Flush(uint32_t local_rank) {
  const auto found = streams_.find(local_rank);
  if (found != streams_.end()) Flush(local_rank, found->second);
}

void WorkerOutputs::FlushAll() {
  for (auto& [local_rank, streams] : streams_) Flush(local_rank, streams);
}

}  // namespace cadre::agent
