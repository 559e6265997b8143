// What this thread's open NCCL group holds back: operations that no stream has before the group is
// closed.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_OPEN_GROUP_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_OPEN_GROUP_H_

namespace cadre::pretend_gpu {

class Stream;

// The group holds an operation for that stream. CloseGroup(): it holds none any more.
void HoldInGroup(const Stream& stream);
void CloseGroup();

// Reports that `what` comes before the operations that the group holds for `stream`, or for any
// where it is null. False: there are none.
bool ReportOpenGroup(const Stream* stream, const char* what);

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_OPEN_GROUP_H_
