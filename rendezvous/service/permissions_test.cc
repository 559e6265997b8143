#include "rendezvous/service/permissions.h"

#include <functional>
#include <map>
#include <set>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "rendezvous/service/bearers_for_test.h"

namespace cadre::service {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kSecret[] = "what-ann-wrote";

Bearer Administrator() { return {}; }

void Fill(Message* message);

void FillField(Message* message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  const bool many = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return many ? reflection.AddString(message, &field, kSecret)
                  : reflection.SetString(message, &field, kSecret);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Fill(many ? reflection.AddMessage(message, &field)
                       : reflection.MutableMessage(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return many ? reflection.AddDouble(message, &field, 7.25)
                  : reflection.SetDouble(message, &field, 7.25);
    default:
      return;
  }
}

// Sets all texts to kSecret. Of a oneof the last field remains.
void Fill(Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    // Except messages that carry messages of their own type.
    if (type.field(i)->name() != "more") FillField(message, *type.field(i));
  }
}

template <typename Answer>
Answer Filled() {
  Answer answer;
  Fill(&answer);
  return answer;
}

// Finds the fields that still contain kSecret.
void FindSecrets(const Message& message, const std::string& at, std::set<std::string>* found) {
  std::vector<const FieldDescriptor*> fields;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = at + field->name();
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        FindSecrets(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                         : reflection.GetMessage(message, field),
                    path + ".", found);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        const std::string text = field->is_repeated()
                                     ? reflection.GetRepeatedString(message, field, i)
                                     : reflection.GetString(message, field);
        if (text.find(kSecret) != text.npos) found->insert(path);
      }
    }
  }
}
std::set<std::string> Secrets(const Message& message) {
  std::set<std::string> found;
  FindSecrets(message, "", &found);
  return found;
}

v1::JobStatus JobOf(const std::string& user) {
  auto job = Filled<v1::JobStatus>();
  job.set_user(user);
  return job;
}

// For every answer of the server: which fields callers see.
using Shown = std::function<std::set<std::string>(const Bearer&)>;
template <typename Answer>
Shown Whole() {
  return [](const Bearer& bearer) {
    auto answer = Filled<Answer>();
    ShowTo(bearer, &answer);
    return Secrets(answer);
  };
}
std::map<std::string, Shown> Answers() {
  return {
      {"cadre.v1.JobStatus",
       [](const Bearer& bearer) {
         v1::JobStatus job = JobOf("ann");
         ShowTo(bearer, &job);
         return Secrets(job);
       }},
      {"cadre.v1.ListJobsReply",
       [](const Bearer& bearer) {
         v1::ListJobsReply jobs;
         *jobs.add_jobs() = JobOf("ann");
         ShowTo(bearer, &jobs);
         return jobs.jobs_size() == 0 ? std::set<std::string>() : Secrets(jobs.jobs(0));
       }},
      {"cadre.v1.JobUsage",
       [](const Bearer& bearer) {
         auto usage = Filled<v1::JobUsage>();
         usage.set_owner("ann");
         ShowTo(bearer, &usage);
         return Secrets(usage);
       }},
      {"cadre.v1.HistoryReply",
       [](const Bearer& bearer) {
         auto history = Filled<v1::HistoryReply>();
         history.mutable_jobs(0)->set_user("ann");
         ShowTo(bearer, &history);
         return Secrets(history);
       }},
      {"cadre.v1.UsageReply", Whole<v1::UsageReply>()},
      {"cadre.v1.ListNodesReply", Whole<v1::ListNodesReply>()},
      {"cadre.v1.ReadLogReply", Whole<v1::ReadLogReply>()},
      {"cadre.v1.GetStacksReply", Whole<v1::GetStacksReply>()},
      {"cadre.v1.StoreReply", Whole<v1::StoreReply>()},
  };
}

// Names of jobs, nodes and runs, the cluster's reports about them, and nothing else.
const char* const kForStrangers[] = {
    "allocated",
    "placement.exclude",
    "placement.labels",
    "placement.nodes",
    "queue_reason",
    "submitted_name",
    "avoided.node",
    "batch_name",
    "name",
    "nodes.host",
    "nodes.name",
    "nodes.remains",
    "run",
    "started_by",
    "timeline.job",
    "verdict.collateral.message",
    "verdict.collateral.node",
    "verdict.earlier.message",
    "verdict.earlier.node",
    "verdict.job",
    "verdict.root_cause.message",
    "verdict.root_cause.node",
    "verdict.run",
    "waiting_for",
};

TEST(DisclosureTest, EveryAnswerOfEveryCallIsLookedAt) {
  const std::map<std::string, Shown> answers = Answers();
  const auto* files = google::protobuf::DescriptorPool::generated_pool();
  // They are in the pool only if their file is linked in.
  v1::ListJobsReply::descriptor();
  v1::StoreReply::descriptor();
  for (const char* name : {"cadre.v1.Control", "cadre.v1.Store"}) {
    const google::protobuf::ServiceDescriptor* service = files->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      EXPECT_EQ(answers.count(service->method(i)->output_type()->full_name()), 1u)
          << service->method(i)->full_name();
    }
  }
}

TEST(DisclosureTest, ALaunchersTokenIsAnsweredNothing) {
  for (const auto& [name, shown] : Answers()) {
    EXPECT_THAT(shown(Part(3, "j")), IsEmpty()) << name;
    EXPECT_THAT(shown(Part(3, "ann")), IsEmpty()) << name;
  }
}

TEST(DisclosureTest, AReadOnlyTokenIsAnsweredAsAStrangersAndNoOutput) {
  for (const auto& [name, shown] : Answers()) {
    if (name == "cadre.v1.ListNodesReply") {
      EXPECT_EQ(shown(Reader()), shown(Administrator()));
    } else if (name == "cadre.v1.JobStatus" || name == "cadre.v1.ListJobsReply") {
      std::set<std::string> watched = shown(User("bob"));
      // Read-only tokens may also see names that rpc/job_progress.h allows.
      watched.insert({"progress.figures.name", "timeline.figure_names"});
      EXPECT_EQ(shown(Reader()), watched);
    } else if (name == "cadre.v1.JobUsage" || name == "cadre.v1.UsageReply") {
      EXPECT_EQ(shown(Reader()), shown(Administrator()));
    } else if (name == "cadre.v1.HistoryReply") {
      EXPECT_EQ(shown(Reader()), shown(User("bob")));
    } else {
      EXPECT_THAT(shown(Reader()), IsEmpty()) << name;
    }
  }
}

TEST(DisclosureTest, WhoWatchesSeesTheLossAndTheFiguresToo) {
  v1::JobStatus job = JobOf("ann");
  ShowTo(Reader(), &job);
  EXPECT_EQ(job.progress().loss(), 7.25);
  EXPECT_EQ(job.timeline().progress(0).loss(), 7.25);
  EXPECT_EQ(job.progress().figures(0).value(), 7.25);
  EXPECT_EQ(job.timeline().progress(0).figures(0), 7.25);
  v1::JobStatus nothing;
  nothing.set_user("ann");
  ShowTo(Reader(), &nothing);
  EXPECT_FALSE(nothing.has_progress());
  EXPECT_FALSE(nothing.has_timeline());
}

TEST(DisclosureTest, HowBusyAJobsNodesAreIsNoOtherUsersAffair) {
  for (const Bearer& bearer : {User("ann"), User("bob")}) {
    auto usage = Filled<v1::JobUsage>();
    usage.set_owner("ann");
    ShowTo(bearer, &usage);
    EXPECT_EQ(usage.nodes_size(), bearer.user == "ann" ? 1 : 0);
  }
}

TEST(DisclosureTest, AJobsOwnerAndAdministratorsSeeAllOfIt) {
  const v1::JobStatus whole = JobOf("ann");
  for (const Bearer& bearer : {Administrator(), User("ann")}) {
    v1::JobStatus job = whole;
    ShowTo(bearer, &job);
    EXPECT_EQ(job.SerializeAsString(), whole.SerializeAsString());
  }
  for (const auto& [name, shown] : Answers()) EXPECT_THAT(shown(Administrator()), Not(IsEmpty()));
}

TEST(DisclosureTest, AnotherUserSeesNoWordOfAJobsProgramLiveOrEnded) {
  for (const v1::JobPhase phase :
       {v1::QUEUED, v1::RUNNING, v1::STOPPING, v1::SUCCEEDED, v1::FAILED, v1::CANCELLED_PHASE}) {
    v1::JobStatus job = JobOf("ann");
    job.set_phase(phase);
    ShowTo(User("bob"), &job);
    std::set<std::string> allowed(std::begin(kForStrangers), std::end(kForStrangers));
    EXPECT_THAT(Secrets(job), ::testing::IsSubsetOf(allowed)) << v1::JobPhase_Name(phase);
    EXPECT_EQ(job.user(), "ann");
    EXPECT_EQ(job.progress().loss(), 0);
    EXPECT_EQ(job.progress().samples_per_second(), 7.25);
    EXPECT_EQ(job.timeline().progress(0).loss(), 0);
    EXPECT_EQ(job.progress().figures_size(), 0);
    EXPECT_EQ(job.timeline().progress(0).figures_size(), 0);
    EXPECT_EQ(job.end_reason(), kNotShown);
    EXPECT_EQ(job.stop_reason(), kNotShown);
    EXPECT_EQ(job.timeline().generations(0).end_reason(), kNotShown);
    EXPECT_EQ(job.verdict().message(), kNotShown);
  }
  v1::ListJobsReply list;
  *list.add_jobs() = JobOf("ann");
  *list.add_jobs() = JobOf("bob");
  ShowTo(User("bob"), &list);
  EXPECT_EQ(list.jobs(0).verdict().root_cause().exit().last_lines(), "");
  EXPECT_EQ(list.jobs(1).verdict().root_cause().exit().last_lines(), kSecret);
}

TEST(DisclosureTest, AnotherUsersEndedJobsAreShownWithoutTheirCommandAndMessage) {
  auto history = Filled<v1::HistoryReply>();
  history.mutable_jobs(0)->set_user("ann");
  const v1::HistoryReply whole = history;
  ShowTo(User("ann"), &history);
  EXPECT_EQ(history.SerializeAsString(), whole.SerializeAsString());
  ShowTo(User("bob"), &history);
  EXPECT_THAT(Secrets(history), ::testing::UnorderedElementsAre("jobs.name", "jobs.nodes",
                                                                "jobs.node_uses.node", "trouble"));
  EXPECT_EQ(history.jobs(0).message(), kNotShown);
}

TEST(DisclosureTest, HowAWorkerEndedIsSaidWithoutItsLastLine) {
  v1::JobStatus status;
  status.set_user("ann");
  v1::Verdict* verdict = status.mutable_verdict();
  verdict->set_outcome(v1::FAILED);
  verdict->set_message("rank 3 exited with status 7; its last line: what-ann-wrote");
  v1::Failure* failure = verdict->mutable_root_cause();
  failure->set_cause(v1::CRASH);
  failure->set_rank(3);
  failure->set_local_rank(1);
  failure->set_node("n2");
  failure->set_message(verdict->message());
  failure->mutable_exit()->set_exit_code(7);
  failure->mutable_exit()->set_last_lines(kSecret);
  failure->mutable_exit()->set_error_json("{\"message\": \"what-ann-wrote\"}");
  v1::Failure* hang = verdict->add_earlier();
  hang->set_cause(v1::HANG);
  hang->set_rank(0);
  hang->set_message("rank 0 made no progress: train.py:40: what-ann-wrote");
  hang->add_evidence()->set_python_what(kSecret);
  v1::Failure* lost = verdict->add_earlier();
  lost->set_cause(v1::NODE_LOST);
  lost->set_rank(-1);
  lost->set_node("n1");
  lost->set_message("node n1 is lost: it left: what-ann-wrote");
  ShowTo(User("bob"), &status);
  EXPECT_THAT(status.DebugString(), Not(HasSubstr(kSecret)));
  EXPECT_EQ(status.verdict().message(), "rank 3 (local rank 1) on n2 exited with status 7");
  EXPECT_EQ(status.verdict().earlier(0).message(), "rank 0 (local rank 0) made no progress");
  EXPECT_EQ(status.verdict().earlier(1).message(), "node n1 is lost");
}

TEST(DisclosureTest, WhyASubmittedJobWaitsIsShown) {
  v1::JobStatus status;
  status.set_user("ann");
  status.set_phase(v1::GATHERING);
  status.set_waiting_for("its launcher on n1 to begin");
  ShowTo(User("bob"), &status);
  EXPECT_EQ(status.waiting_for(), "its launcher on n1 to begin");
}

TEST(DisclosureTest, AJobThatNodesBringIsShownToWhoseTokenTheyHad) {
  v1::JobStatus status;
  status.set_started_by("ann");
  status.set_phase(v1::GATHERING);
  status.set_waiting_for("1 more node; node b was refused: its command is what-ann-wrote");
  v1::JobStatus own = status;
  ShowTo(User("ann"), &own);
  EXPECT_EQ(own.waiting_for(), status.waiting_for());
  v1::JobStatus administrators = status;
  administrators.clear_started_by();
  for (v1::JobStatus job : {status, administrators}) {
    ShowTo(User("bob"), &job);
    EXPECT_EQ(job.waiting_for(), kNotShown);
  }
}

// Checks every type of message on every type of stream.
//
// Fault (access): Users, readers and clients that do not authenticate send a server arbitrary
// messages -> They receive nothing about another user's job, and that job goes on
TEST(DisclosureTest, AStreamHearsOfItsOwnJobAloneAndOrdersGoToAgentsAlone) {
  const google::protobuf::OneofDescriptor& bodies =
      *v1::ServerMessage::descriptor()->FindOneofByName("body");
  ASSERT_GT(bodies.field_count(), 8);
  for (int i = 0; i < bodies.field_count(); ++i) {
    v1::ServerMessage message;
    message.GetReflection()->MutableMessage(&message, bodies.field(i));
    const std::string& kind = bodies.field(i)->name();
    const bool refusal = kind == "rejected", order = kind == "agent";
    for (const Bearer& bearer : {Administrator(), User("ann"), Part(3, "j")}) {
      message.set_job("j");
      EXPECT_EQ(MayReceive(bearer, {false, "j"}, message), !order) << kind;
      EXPECT_EQ(MayReceive(bearer, {false, "k"}, message), refusal) << kind;
      EXPECT_EQ(MayReceive(bearer, {false, ""}, message), refusal) << kind;
      EXPECT_EQ(MayReceive(bearer, {true, ""}, message), refusal) << kind;
      message.clear_job();
      const bool administrator = bearer.kind == Bearer::Kind::kAdministrator;
      EXPECT_EQ(MayReceive(bearer, {true, ""}, message), refusal || administrator) << kind;
      EXPECT_EQ(MayReceive(bearer, {false, "j"}, message), refusal) << kind;
    }
  }
}

v1::NodeMessage Join(const std::string& job, uint64_t part) {
  v1::NodeMessage message;
  message.set_job(job);
  message.mutable_join()->set_part(part);
  return message;
}

constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

TEST(PermissionTest, StreamsOfAgentsLaunchersAndNodes) {
  v1::NodeMessage agent;
  agent.mutable_agent()->mutable_joined();
  EXPECT_OK(MayOpenStream(Bearer(), agent));
  EXPECT_OK(MayOpenStream(Bearer(), Join("j", 3)));
  EXPECT_THAT(MayOpenStream(User("ann"), agent), StatusIs(kDenied, HasSubstr("user ann")));
  EXPECT_THAT(MayOpenStream(Part(3, "j"), agent), StatusIs(kDenied));
  EXPECT_OK(MayOpenStream(User("ann"), Join("j", 0)));
  EXPECT_THAT(MayOpenStream(User("ann"), Join("j", 3)), StatusIs(kDenied));
  EXPECT_OK(MayOpenStream(Part(3, "j"), Join("j", 3)));
  EXPECT_THAT(MayOpenStream(Part(3, "j"), Join("j", 4)), StatusIs(kDenied));
  EXPECT_THAT(MayOpenStream(Part(3, "j"), Join("j", 0)), StatusIs(kDenied));
  EXPECT_THAT(MayOpenStream(Part(3, "j"), Join("k", 3)), StatusIs(kDenied));
}

TEST(PermissionTest, AJobIsItsOwnersAndTheAdministrators) {
  EXPECT_OK(MayUseJob(Bearer(), "ann"));
  EXPECT_OK(MayUseJob(User("ann"), "ann"));
  EXPECT_OK(MayUseJob(Bearer(), ""));
  EXPECT_THAT(MayUseJob(User("ann"), ""),
              StatusIs(kDenied, HasSubstr("the job is the administrators'")));
  EXPECT_THAT(MayUseJob(User("bob"), "ann"),
              StatusIs(kDenied, HasSubstr("the job is ann's, and this is the token of user bob")));
  EXPECT_THAT(MayUseJob(Part(3, "j"), "ann"), StatusIs(kDenied));
  v1::SubmitJobRequest request;
  request.set_user("ann");
  EXPECT_OK(MaySubmit(Bearer(), request));
  EXPECT_OK(MaySubmit(User("ann"), request));
  EXPECT_THAT(MaySubmit(User("bob"), request), StatusIs(kDenied));
  EXPECT_THAT(MaySubmit(Part(3, "j"), request), StatusIs(kDenied));
}

TEST(PermissionTest, AReadOnlyTokenLooksAndDoesNothingElse) {
  v1::NodeMessage agent;
  agent.mutable_agent()->mutable_joined();
  v1::SubmitJobRequest request;
  request.set_user("ann");
  v1::SubmitJobRequest nobodys;
  EXPECT_OK(MayView(Reader()));
  for (const absl::Status& status :
       {MayOpenStream(Reader(), agent), MayOpenStream(Reader(), Join("j", 0)),
        MayOpenStream(Reader(), Join("", 0)), MayCallStore(Reader()), MaySubmit(Reader(), request),
        MaySubmit(Reader(), nobodys), MayUseJob(Reader(), "ann"), MayUseJob(Reader(), ""),
        MayDrain(Reader())}) {
    EXPECT_THAT(status, StatusIs(kDenied, HasSubstr("this is a read-only token, which ")));
  }
}

TEST(PermissionTest, NodesAndStores) {
  EXPECT_OK(MayDrain(Bearer()));
  EXPECT_THAT(MayDrain(User("ann")), StatusIs(kDenied, HasSubstr("the server's own token")));
  EXPECT_THAT(MayDrain(Part(3, "j")), StatusIs(kDenied));
  EXPECT_OK(MayView(User("ann")));
  EXPECT_THAT(MayView(Part(3, "j")), StatusIs(kDenied));
  EXPECT_OK(MayCallStore(Bearer()));
  EXPECT_THAT(MayCallStore(Part(3, "j")), StatusIs(kDenied));
  EXPECT_THAT(MayCallStore(User("ann")), StatusIs(kDenied));
}

}  // namespace

}  // namespace cadre::service
