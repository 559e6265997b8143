#include "agent/supervisor/frames.h"

#include <utility>

#include "base/status_macros.h"
#include "rpc/frames/codec.h"

namespace cadre::supervisor {
namespace {

// The number of frame kinds in kFramesBefore; later kinds follow.
constexpr size_t kKindsBefore = 17;
static_assert(std::is_same_v<std::variant_alternative_t<kKindsBefore, Frame>, ReadingFrame>);

}  // namespace

template <typename Io>
void Fields(Io& io, WarmOptions& w) {
  io(w.directory, w.module, w.script, w.preload, w.rank_variables, w.quiet_ms);
}
template <typename Io>
void Fields(Io& io, DeviceRule& r) {
  io(r.major, r.first_minor, r.last_minor, r.allowed);
}
template <typename Io>
void Fields(Io& io, Containment& c) {
  io(c.asked, c.uid, c.gid, c.devices, c.memory_bytes, c.max_pids);
}
template <typename Io>
void Fields(Io& io, NamedFile& f) {
  io(f.path, f.empty_before_ms);
}
template <typename Io>
void Fields(Io& io, StartFrame& f) {
  io(f.group, f.argv, f.environment, f.working_dir, f.stdout_path, f.stderr_path, f.forward_stdout,
     f.forward_stderr, f.error_file, f.cpus, f.stands_by, f.assignment, f.warm, f.containment);
  if (io.version() != kFramesBefore) io(f.stdout_file, f.stderr_file);
}
template <typename Io>
void Fields(Io& io, StopFrame& f) {
  io(f.group, f.grace_ms);
}
template <typename Io>
void Fields(Io& io, SignalFrame& f) {
  io(f.group, f.signal);
  if (io.version() != kFramesBefore) io(f.process_only);
}
template <typename Io>
void Fields(Io& io, ReadyFrame& f) {
  io(f.pid, f.cgroup, f.degraded);
}
template <typename Io>
void Fields(Io& io, StartedFrame& f) {
  io(f.group, f.pid, f.was, f.warm, f.why_plain);
}
template <typename Io>
void Fields(Io& io, ExitedFrame& f) {
  io(f.group, f.pid, f.exit_code, f.signal, f.core_dumped, f.exec_errno, f.exec_step,
     f.out_of_memory, f.memory_limit, f.last_lines, f.error_json);
}
template <typename Io>
void Fields(Io& io, OutputFrame& f) {
  io(f.group, f.stream, f.dropped, f.bytes);
}
template <typename Io>
void Fields(Io& io, AllGoneFrame& f) {
  io(f.group);
}
template <typename Io>
void Fields(Io& io, HoldFrame& f) {
  io(f.group, f.until_us);
}
template <typename Io>
void Fields(Io& io, KeepFrame& f) {
  io(f.keep_ms, f.socket_path, f.token);
}
template <typename Io>
void Fields(Io& io, DirectoryFrame& f) {
  io(f.path);
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
  io(f.id, f.groups, f.alone_ms, f.hold_until_us, f.stopping);
}
template <typename Io>
void Fields(Io& io, RemainingProcess& p) {
  io(p.pid, p.state, p.kernel_function);
}
template <typename Io>
void Fields(Io& io, RemainsFrame& f) {
  io(f.group, f.processes);
}
template <typename Io>
void Fields(Io& io, TemplateFrame& f) {
  io(f.pid, f.modules, f.milliseconds, f.notes);
}

template <typename Io>
void Fields(Io& io, ImportedFrame& f) {
  io(f.group, f.milliseconds);
}

template <typename Io>
void Fields(Io& io, ReadingFrame& f) {
  io(f.reads);
}

std::string EncodeFrame(const Frame& frame, uint32_t version) {
  std::string bytes;
  if (version == kFramesBefore && frame.index() >= kKindsBefore) return bytes;
  frames::AppendMessage(frame, &bytes, version);
  return bytes;
}

absl::StatusOr<std::optional<Frame>> NextFrame(frames::FrameReader& reader, uint32_t version) {
  absl::string_view content;
  ASSIGN_OR_RETURN(const bool found, reader.Next(&content));
  if (!found) return std::optional<Frame>();
  ASSIGN_OR_RETURN(Frame frame, frames::ParseMessage<Frame>(content, version));
  return std::optional<Frame>(std::move(frame));
}

}  // namespace cadre::supervisor
