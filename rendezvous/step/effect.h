// All that the core may ask of its host. The order in which the host carries them out is part of
// the contract; see core.h.
#ifndef CADRE_RENDEZVOUS_STEP_EFFECT_H_
#define CADRE_RENDEZVOUS_STEP_EFFECT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/step/ids.h"

namespace cadre {

struct SendToStream {
  StreamId stream;
  v1::ServerMessage message;
};

struct ReplyToCall {
  CallId call;
  v1::StoreReply reply;
};

// After all that was sent to it before.
struct CloseStream {
  StreamId stream;
  absl::Status status;
};

// A line for the log: a decision and its reason.
struct Note {
  std::string job;
  std::string text;
};

struct Effects {
  std::vector<v1::Record> append;
  std::vector<SendToStream> send;
  std::vector<ReplyToCall> reply;
  std::vector<CloseStream> close;
  std::vector<Note> notes;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_STEP_EFFECT_H_
