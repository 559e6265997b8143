#include "rpc/figures.h"

#include <string>

#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

TEST(FiguresTest, Names) {
  for (const char* name : {"lr", "eval/acc", "grad_norm.2"})
    EXPECT_TRUE(IsFigureName(name)) << name;
  for (const char* name : {"", "9x", "a-b", "a b", "_", "<img>", "step", "total", "loss",
                           "samples_per_second", "caf\xc3\xa9"}) {
    EXPECT_FALSE(IsFigureName(name)) << name;
  }
  EXPECT_TRUE(IsFigureName(std::string(kMaxFigureName, 'a')));
  EXPECT_FALSE(IsFigureName(std::string(kMaxFigureName + 1, 'a')));
}

TEST(FiguresTest, OfAPeerThatSendsManyAndBadOnes_TheFirstGoodOnesAreTaken) {
  Figures sent;
  for (int i = 0; i < 3 * kMaxFigures; ++i) {
    v1::Figure* figure = sent.Add();
    figure->set_name("m" + std::to_string(i));
    figure->set_value(i);
    sent.Add()->set_name("<script>");
  }
  *sent.Add() = v1::Figure(sent[0]);
  sent[sent.size() - 1].set_value(7);
  const Figures checked = CheckedFigures(sent);
  ASSERT_EQ(checked.size(), kMaxFigures);
  EXPECT_EQ(checked[0].value(), 7);
  EXPECT_EQ(checked[kMaxFigures - 1].name(), "m" + std::to_string(kMaxFigures - 1));
}

}  // namespace
}  // namespace cadre::rpc
