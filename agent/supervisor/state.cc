#include "agent/supervisor/state.h"

#include <sys/epoll.h>

#include "absl/strings/str_cat.h"

namespace cadre::supervisor {
namespace {

epoll_event Tagged(Source source, uint64_t serial, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = serial << 8 | static_cast<uint8_t>(source);
  return event;
}

}  // namespace

Group* State::Find(uint64_t group_id) {
  const auto serial = by_id.find(group_id);
  return serial == by_id.end() ? nullptr : &groups.at(serial->second);
}

std::string State::MarkerOf(uint64_t serial) const { return absl::StrCat(id, ".", serial); }

void State::Watch(int fd, Source source, uint64_t serial, uint32_t events) const {
  epoll_event event = Tagged(source, serial, events);
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event);
}

void State::Rewatch(int fd, Source source, uint64_t serial, uint32_t events) const {
  epoll_event event = Tagged(source, serial, events);
  epoll_ctl(epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

// Closing alone does not do: a child between fork and exec still holds a copy.
void State::Unwatch(int fd) const { epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr); }

void ReportExit(State& state, Group& group) {
  group.end.group = group.id;
  group.end.pid = group.pid;
  group.exited = group.reported = true;
  state.outbox.Send(group.end);
}

void PassOnOutput(State& state, Group& group) {
  for (CapturedStream* stream : {&group.standard_output, &group.standard_error, &group.progress}) {
    stream->ReadAvailable(state.outbox);
    stream->FlushRest(state.outbox);
  }
}

void CloseStream(State& state, CapturedStream& stream) {
  if (!stream.open()) return;
  if (!stream.paused) state.Unwatch(stream.fd());
  stream.paused = false;
  stream.Close();
}

}  // namespace cadre::supervisor
