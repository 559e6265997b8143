// The communicator and work functions of cadre.h.
#include "cadre/communicator.h"

#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre.h"
#include "cadre/connect.h"
#include "cadre/wait_or_abort.h"
#include "cadre/work.h"
#include "worker_runtime/c/boundary.h"
#include "worker_runtime/c/handles.h"

namespace cadre::c {
namespace {

// Starts an operation: `start` returns a Result of its work. The handle is allocated before the
// operation is started, since an operation without a handle could not be waited for.
template <typename Start>
cadre_status Started(cadre_communicator* communicator, cadre_work** work,
                     const Start& start) noexcept {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(work, "work"));
    *work = nullptr;
    RETURN_IF_ERROR(NotNull(communicator, "communicator"));
    auto handle = std::make_unique<cadre_work>();
    ASSIGN_OR_RETURN(handle->work, start(*communicator->communicator));
    *work = handle.release();
    return OkStatus();
  });
}

}  // namespace
}  // namespace cadre::c

using cadre::Buffer;
using cadre::Communicator;
using cadre::ReduceOp;
using cadre::Status;
using cadre::c::BufferOf;
using cadre::c::Guarded;
using cadre::c::NotNull;
using cadre::c::ReduceOpOf;
using cadre::c::Started;
using cadre::c::TimeoutOf;
using StartedWork = cadre::Result<std::shared_ptr<cadre::Work>>;

cadre_status cadre_communicator_connect(cadre_worker* worker, const char* name, int64_t timeout_ms,
                                        cadre_communicator** communicator) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(communicator, "communicator"));
    *communicator = nullptr;
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    RETURN_IF_ERROR(NotNull(name, "name"));
    ASSIGN_OR_RETURN(const auto timeout, cadre::c::TimeoutOf(timeout_ms));
    auto handle = std::make_unique<cadre_communicator>();
    ASSIGN_OR_RETURN(handle->communicator,
                     cadre::ConnectCommunicator(*worker->worker, {name, timeout}));
    *communicator = handle.release();
    return cadre::OkStatus();
  });
}

cadre_status cadre_communicator_connect_group(cadre_worker* worker, const char* name,
                                              const int* ranks, size_t count, int64_t timeout_ms,
                                              cadre_communicator** communicator) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(communicator, "communicator"));
    *communicator = nullptr;
    RETURN_IF_ERROR(NotNull(worker, "worker"));
    RETURN_IF_ERROR(NotNull(name, "name"));
    RETURN_IF_ERROR(NotNull(ranks, "ranks"));
    const auto world = static_cast<size_t>(worker->worker->world_size());
    if (count > world) {
      return cadre::InvalidArgumentError(absl::StrCat(
          "a group of ", count, " ranks does not fit into a world of ", world, " ranks"));
    }
    ASSIGN_OR_RETURN(const auto timeout, cadre::c::TimeoutOf(timeout_ms));
    auto handle = std::make_unique<cadre_communicator>();
    ASSIGN_OR_RETURN(handle->communicator,
                     cadre::ConnectGroup(*worker->worker, {ranks, count}, {name, timeout}));
    *communicator = handle.release();
    return cadre::OkStatus();
  });
}

void cadre_communicator_free(cadre_communicator* communicator) { delete communicator; }

cadre_status cadre_communicator_abort(cadre_communicator* communicator) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(communicator, "communicator"));
    communicator->communicator->Abort();
    return cadre::OkStatus();
  });
}

cadre_status cadre_all_reduce(cadre_communicator* communicator, void* data, size_t count,
                              cadre_data_type type, cadre_reduce_op op, cadre_work** work) {
  return Started(communicator, work, [&](Communicator& ranks) -> StartedWork {
    ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(data, count, type));
    ASSIGN_OR_RETURN(const ReduceOp reduction, ReduceOpOf(op));
    return ranks.AllReduce(buffer, reduction);
  });
}

cadre_status cadre_reduce(cadre_communicator* communicator, void* data, size_t count,
                          cadre_data_type type, cadre_reduce_op op, int root, cadre_work** work) {
  return Started(communicator, work, [&](Communicator& ranks) -> StartedWork {
    ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(data, count, type));
    ASSIGN_OR_RETURN(const ReduceOp reduction, ReduceOpOf(op));
    return ranks.Reduce(buffer, reduction, root);
  });
}

cadre_status cadre_broadcast(cadre_communicator* communicator, void* data, size_t count,
                             cadre_data_type type, int root, cadre_work** work) {
  return Started(communicator, work, [&](Communicator& ranks) -> StartedWork {
    ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(data, count, type));
    return ranks.Broadcast(buffer, root);
  });
}

cadre_status cadre_all_gather(cadre_communicator* communicator, const void* input, void* output,
                              size_t count, cadre_data_type type, cadre_work** work) {
  return Started(communicator, work, [&](Communicator& ranks) -> StartedWork {
    ASSIGN_OR_RETURN(const Buffer part, BufferOf(input, count, type));
    ASSIGN_OR_RETURN(const Buffer whole, BufferOf(output, count, type, ranks.size()));
    return ranks.AllGather(part, whole);
  });
}

cadre_status cadre_reduce_scatter(cadre_communicator* communicator, const void* input, void* output,
                                  size_t count, cadre_data_type type, cadre_reduce_op op,
                                  cadre_work** work) {
  return Started(communicator, work, [&](Communicator& ranks) -> StartedWork {
    ASSIGN_OR_RETURN(const Buffer whole, BufferOf(input, count, type, ranks.size()));
    ASSIGN_OR_RETURN(const Buffer part, BufferOf(output, count, type));
    ASSIGN_OR_RETURN(const ReduceOp reduction, ReduceOpOf(op));
    return ranks.ReduceScatter(whole, part, reduction);
  });
}

cadre_status cadre_barrier(cadre_communicator* communicator, cadre_work** work) {
  return Started(communicator, work,
                 [&](Communicator& ranks) -> StartedWork { return ranks.Barrier(); });
}

cadre_status cadre_send(cadre_communicator* communicator, const void* data, size_t count,
                        cadre_data_type type, int to, int tag, cadre_work** work) {
  return Started(communicator, work, [&](Communicator& ranks) -> StartedWork {
    ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(data, count, type));
    return ranks.Send(buffer, to, tag);
  });
}

cadre_status cadre_receive(cadre_communicator* communicator, void* data, size_t count,
                           cadre_data_type type, int from, int tag, cadre_work** work) {
  return Started(communicator, work, [&](Communicator& ranks) -> StartedWork {
    ASSIGN_OR_RETURN(const Buffer buffer, BufferOf(data, count, type));
    return ranks.Receive(buffer, from, tag);
  });
}

cadre_status cadre_work_wait(cadre_work* work, int64_t timeout_ms) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(work, "work"));
    ASSIGN_OR_RETURN(const auto timeout, TimeoutOf(timeout_ms));
    return work->work->Wait(timeout);
  });
}

cadre_status cadre_work_wait_or_abort(cadre_work* work, cadre_communicator* communicator,
                                      int64_t timeout_ms) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(work, "work"));
    RETURN_IF_ERROR(NotNull(communicator, "communicator"));
    ASSIGN_OR_RETURN(const auto timeout, TimeoutOf(timeout_ms));
    return cadre::WaitOrAbort(*communicator->communicator, work->work, timeout);
  });
}

int cadre_work_done(const cadre_work* work) {
  if (Guarded([&] { return NotNull(work, "work"); }) != CADRE_OK) return -1;
  return work->work->done() ? 1 : 0;
}

void cadre_work_free(cadre_work* work) { delete work; }
