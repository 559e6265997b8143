#include "rendezvous/service/disclosure.h"

#include <functional>
#include <map>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"

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
Bearer User(const std::string& name) {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kUser;
  bearer.user = name;
  return bearer;
}
Bearer Part(const std::string& job) {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kPart;
  bearer.part = 3;
  bearer.job = job;
  return bearer;
}

Bearer Reader() {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kReader;
  return bearer;
}

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

// All texts are kSecret. Of what may be one thing or another it is the last.
void Fill(Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    // Messages that carry messages of their own kind.
    if (type.field(i)->name() != "more") FillField(message, *type.field(i));
  }
}

template <typename Answer>
Answer Filled() {
  Answer answer;
  Fill(&answer);
  return answer;
}

// The fields in which kSecret still stands.
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

// Of every answer of the server: what of it comes to somebody.
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
      {"cadre.v1.ListNodesReply", Whole<v1::ListNodesReply>()},
      {"cadre.v1.ReadLogReply", Whole<v1::ReadLogReply>()},
      {"cadre.v1.GetStacksReply", Whole<v1::GetStacksReply>()},
      {"cadre.v1.StoreReply", Whole<v1::StoreReply>()},
  };
}

// Names of jobs, of nodes and of runs, what the cluster says of them, and nothing else.
const char* const kForStrangers[] = {
    "avoided.node",
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
  // In the pool once their file is linked in.
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
    EXPECT_THAT(shown(Part("j")), IsEmpty()) << name;
    EXPECT_THAT(shown(Part("ann")), IsEmpty()) << name;
  }
}

TEST(DisclosureTest, AReadOnlyTokenIsAnsweredAsAStrangersAndNoOutput) {
  for (const auto& [name, shown] : Answers()) {
    if (name == "cadre.v1.ListNodesReply") {
      EXPECT_EQ(shown(Reader()), shown(Administrator()));
    } else if (name == "cadre.v1.JobStatus" || name == "cadre.v1.ListJobsReply") {
      std::set<std::string> watched = shown(User("bob"));
      // Names that rpc/figures.h lets through.
      watched.insert({"progress.figures.name", "timeline.figure_names"});
      EXPECT_EQ(shown(Reader()), watched);
    } else if (name == "cadre.v1.JobUsage") {
      EXPECT_EQ(shown(Reader()), shown(Administrator()));
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

// Every kind of message that goes down a stream, to every kind of stream.
TEST(DisclosureTest, AStreamHearsOfItsOwnJobAloneAndOrdersGoToAgentsAlone) {
  const google::protobuf::OneofDescriptor& bodies =
      *v1::ServerMessage::descriptor()->FindOneofByName("body");
  ASSERT_GT(bodies.field_count(), 8);
  for (int i = 0; i < bodies.field_count(); ++i) {
    v1::ServerMessage message;
    message.GetReflection()->MutableMessage(&message, bodies.field(i));
    const std::string& kind = bodies.field(i)->name();
    const bool refusal = kind == "rejected", order = kind == "agent";
    for (const Bearer& bearer : {Administrator(), User("ann"), Part("j")}) {
      message.set_job("j");
      EXPECT_EQ(MayHear(bearer, {false, "j"}, message), !order) << kind;
      EXPECT_EQ(MayHear(bearer, {false, "k"}, message), refusal) << kind;
      EXPECT_EQ(MayHear(bearer, {false, ""}, message), refusal) << kind;
      EXPECT_EQ(MayHear(bearer, {true, ""}, message), refusal) << kind;
      message.clear_job();
      const bool administrator = bearer.kind == Bearer::Kind::kAdministrator;
      EXPECT_EQ(MayHear(bearer, {true, ""}, message), refusal || administrator) << kind;
      EXPECT_EQ(MayHear(bearer, {false, "j"}, message), refusal) << kind;
    }
  }
}

}  // namespace
}  // namespace cadre::service
