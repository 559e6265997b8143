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
  EndUnfinishedLine();
  for (auto it = streams_.begin(); it != streams_.end();) {
    it = kept.count(it->first) != 0 ? std::next(it) : streams_.erase(it);
  }
}

WorkerOutputs::Stream WorkerOutputs::StreamOf(const std::string& prefix, bool to_stderr) const {
  return {display_.DrawsCurrentRows(to_stderr), LineAssembler(prefix), LiveRows(prefix)};
}

void WorkerOutputs::Begin(const PrefixFields& of) {
  Flush(of.local_rank);
  EndUnfinishedLine();
  const std::string prefix = LinePrefix(prefix_template_, of);
  streams_.erase(of.local_rank);
  streams_.emplace(of.local_rank,
                   Streams{StreamOf(prefix, false), StreamOf(prefix, true), LineAssembler()});
}

std::string WorkerOutputs::Add(uint32_t local_rank, const supervisor::OutputFrame& frame) {
  const auto found = streams_.find(local_rank);
  if (found == streams_.end()) return "";
  Streams& streams = found->second;
  if (frame.stream == kProgressStream) return streams.progress.Add(frame.bytes, frame.dropped);
  const bool to_stderr = frame.stream == kStandardError;
  Stream& stream = to_stderr ? streams.standard_error : streams.standard_output;
  if (!stream.drawn) {
    Show(stream.lines.Add(frame.bytes, frame.dropped), stream, to_stderr);
  } else {
    const std::string lines = stream.rows.Add(frame.bytes, frame.dropped);
    Stream& other = to_stderr ? streams.standard_output : streams.standard_error;
    // A bar that is done stands above what is written after it.
    if (!lines.empty()) Show(other.rows.WroteElsewhere(), other, !to_stderr);
    Show(lines, stream, to_stderr);
  }
  ShowRows(local_rank, streams);
  return "";
}

void WorkerOutputs::ShowRows(uint32_t local_rank, Streams& streams) {
  std::vector<std::string> rows = streams.standard_output.rows.Drawn();
  for (std::string& row : streams.standard_error.rows.Drawn()) rows.push_back(std::move(row));
  if (rows.empty() && !streams.has_rows) return;
  streams.has_rows = !rows.empty();
  display_.CurrentRows(local_rank, std::move(rows));
}

void WorkerOutputs::EndUnfinishedLine() {
  if (unfinished_ == nullptr) return;
  display_.WorkerLines(unfinished_->lines.Interrupt(), unfinished_to_stderr_);
  unfinished_ = nullptr;
}

void WorkerOutputs::Show(const std::string& lines, Stream& from, bool to_stderr) {
  if (lines.empty()) return;
  if (unfinished_ != &from) EndUnfinishedLine();
  display_.WorkerLines(lines, to_stderr);
  unfinished_ = from.lines.within_line() ? &from : nullptr;
  unfinished_to_stderr_ = to_stderr;
  FilteredLines& filtered = to_stderr ? filtered_stderr_ : filtered_stdout_;
  if (!filtered.wanted()) return;
  // Each state of a progress bar is a line there.
  filtered.Add(absl::StrReplaceAll(lines, {{"\r\n", "\n"}, {"\r", "\n"}}),
               from.lines.prefix().size());
}

void WorkerOutputs::Flush(uint32_t local_rank, Streams& streams) {
  for (const bool to_stderr : {false, true}) {
    Stream& stream = to_stderr ? streams.standard_error : streams.standard_output;
    Show(stream.drawn ? stream.rows.Finish() : stream.lines.Finish(), stream, to_stderr);
  }
  ShowRows(local_rank, streams);
}

void WorkerOutputs::Flush(uint32_t local_rank) {
  const auto found = streams_.find(local_rank);
  if (found != streams_.end()) Flush(local_rank, found->second);
}

void WorkerOutputs::FlushAll() {
  for (auto& [local_rank, streams] : streams_) Flush(local_rank, streams);
}

}  // namespace cadre::agent
