#include "agent/supervisor/state.h"

#include <sys/epoll.h>

namespace cadre {
namespace {

epoll_event Tagged(Source source, uint64_t slot, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = slot << 8 | static_cast<uint8_t>(source);
  return event;
}

}  // namespace

void State::Watch(int fd, Source source, uint64_t slot, uint32_t events) const {
  epoll_event event = Tagged(source, slot, events);
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event);
}

void State::Rewatch(int fd, Source source, uint64_t slot, uint32_t events) const {
  epoll_event event = Tagged(source, slot, events);
  epoll_ctl(epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

// Closing alone does not do: a child between fork and exec still holds a copy.
void State::Unwatch(int fd) const { epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr); }

void ReportExit(State& state, const ExitedFrame& exited) {
  state.outbox.Send(exited);
  const auto generation = state.generations.find(exited.generation);
  if (generation != state.generations.end()) generation->second.exits[exited.local_rank] = exited;
}

void CloseStream(State& state, CapturedStream& stream) {
  if (!stream.open()) return;
  state.Unwatch(stream.fd());
  stream.Close();
}

}  // namespace cadre
