#include "agent/evidence/stack_collector.h"

#include "absl/strings/str_cat.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/process_look.h"
#include "agent/evidence/rank_stack.h"
#include "agent/evidence/source_line.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/utf8.h"

namespace cadre::agent {
namespace {

// Every thread of every process of the worker.
std::string TextOf(const WorkerLook& look, bool native, const std::atomic<bool>& cancelled) {
  std::string text;
  const MonoTime deadline = MonoNow() + kNativeStacksTime;
  for (const pid_t pid : look.processes) {
    absl::StrAppend(&text, "== process ", pid, "\n");
    const auto python = look.python.find(pid);
    if (python != look.python.end() && python->second.ok()) {
      absl::StrAppend(&text, *python->second);
    } else if (python != look.python.end()) {
      absl::StrAppend(&text, "no Python stack: ", python->second.status().message(), "\n",
                      DescribeThreads(pid));
    }
    if (!native) continue;
    absl::StrAppend(&text, "== native stacks of process ", pid, "\n",
                    NativeStacks(pid, deadline, cancelled));
  }
  return Shortened(ReplaceInvalidUtf8(text), kMaxRankTextBytes);
}

v1::RankStack StackOf(const WorkerLook& look) {
  v1::RankStack stack;
  *stack.mutable_evidence() = look.evidence;
  const pid_t program = look.program();
  const auto python = look.python.find(program);
  if (python == look.python.end()) {
    stack.set_no_python("the worker has no process now");
  } else if (!python->second.ok()) {
    stack.set_no_python(std::string(python->second.status().message()));
  } else {
    AddFrames(
        *python->second,
        [program](const std::string& file, int line) { return SourceLine(program, file, line); },
        &stack);
    if (stack.frames_size() == 0) stack.set_no_python("the interpreter names no call");
  }
  return stack;
}

}  // namespace

StackCollector::~StackCollector() {
  {
    const absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void StackCollector::Ask(StackRequest request) {
  bool taken = false;
  {
    const absl::MutexLock lock(&mutex_);
    taken = waiting_.size() < kMaxStackQuestions;
    if (taken) waiting_.push_back(std::move(request));
  }
  if (!taken) {
    v1::NodeStacks stacks;
    stacks.set_why("too many ask for stacks at once; try again later");
    return Answer(request, std::move(stacks));
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

void StackCollector::Run() {
  for (;;) {
    StackRequest request;
    {
      const absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return cancelled_ || !waiting_.empty();
      };
      mutex_.Await(absl::Condition(&ready));
      if (cancelled_) return;
      request = waiting_.front();
    }
    v1::NodeStacks stacks = Collect(request);
    if (!cancelled_) Answer(request, std::move(stacks));
    // Not before: what is under way counts among the questions.
    const absl::MutexLock lock(&mutex_);
    waiting_.pop_front();
  }
}

v1::NodeStacks StackCollector::Collect(const StackRequest& request) const {
  LookOptions options;
  options.generation = request.generation;
  options.directory = request.directory;
  options.answers = kStackAnswersTime;
  options.answer = kStackAnswerTime;
  std::vector<LookedAtWorker> workers;
  for (const LookedAtWorker& worker : request.workers) {
    if (request.question.one_rank() && worker.rank != request.question.rank()) continue;
    workers.push_back(worker);
  }
  const std::vector<WorkerLook> looks = LookAtWorkers(workers, options, cancelled_);
  std::vector<v1::RankStack> ranks;
  for (size_t i = 0; i < looks.size(); ++i) {
    ranks.push_back(StackOf(looks[i]));
    if (!request.question.one_rank()) continue;
    ranks.back().set_text(TextOf(looks[i], request.question.native(), cancelled_));
  }
  return AnswerOf(std::move(ranks));
}

void StackCollector::Answer(const StackRequest& request, v1::NodeStacks stacks) const {
  stacks.set_call(request.call);
  report_(StacksFound{request.generation, std::move(stacks)});
}

}  // namespace cadre::agent
