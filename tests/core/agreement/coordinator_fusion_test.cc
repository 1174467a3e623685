// The coordinator alone: which tensors share a fusion buffer.

#include <string>
#include <vector>

#include "tests/core/agreement/coordinator_fixture.h"

namespace tfmpi {
namespace {

class FusionPlanTest : public CoordinatorTest {
 protected:
  // Elements of float32 tensors -> the number of tensors in each collective.
  std::vector<size_t> Plan(size_t threshold, const std::vector<int64_t>& counts) {
    CoordinatorOptions options;
    options.fusion_threshold = threshold;
    Start(2, options);
    for (size_t i = 0; i < counts.size(); ++i) {
      ReadyEverywhere("t" + std::to_string(i), {counts[i]});
    }
    std::vector<size_t> sizes;
    for (const Response& response : Decide().responses) sizes.push_back(response.items.size());
    return sizes;
  }
};

using Sizes = std::vector<size_t>;

TEST_F(FusionPlanTest, FillsABufferToTheByteAndNoFurther) {
  EXPECT_EQ(Plan(400, {50, 50}), Sizes({2}));     // exactly
  EXPECT_EQ(Plan(400, {50, 51}), Sizes({1, 1}));  // one element more
  EXPECT_EQ(Plan(399, {50, 50}), Sizes({1, 1}));  // one byte less
  EXPECT_EQ(Plan(401, {50, 50}), Sizes({2}));     // one byte more
  EXPECT_EQ(Plan(400, {25, 25, 25, 25, 1}), Sizes({4, 1}));
}

TEST_F(FusionPlanTest, ATensorLargerThanTheBufferTravelsAlone) {
  EXPECT_EQ(Plan(400, {101, 1, 1}), Sizes({1, 2}));
  EXPECT_EQ(Plan(400, {1, 101, 1}), Sizes({1, 1, 1}));
  EXPECT_EQ(Plan(400, {100}), Sizes({1}));
}

// Not even a small one after it joins: both would be copied into the buffer and out again.
TEST_F(FusionPlanTest, ALargeTensorTravelsAlone) {
  constexpr int64_t kLarge = kAloneBytes / sizeof(float);
  EXPECT_EQ(Plan(4 * kAloneBytes, {kLarge, 1, 1}), Sizes({1, 2}));
  EXPECT_EQ(Plan(4 * kAloneBytes, {1, kLarge, 1, 1}), Sizes({1, 1, 2}));
  EXPECT_EQ(Plan(4 * kAloneBytes, {kLarge - 1, 1, kLarge}), Sizes({2, 1}));
}

TEST_F(FusionPlanTest, NoBufferMeansNoFusionButForEmptyTensors) {
  EXPECT_EQ(Plan(0, {1, 1, 1}), Sizes({1, 1, 1}));
  EXPECT_EQ(Plan(0, {0, 0}), Sizes({2}));
}

TEST_F(FusionPlanTest, OnlyOneReductionAndOneWireTypeShareABuffer) {
  Start(1);
  Ready(0, "f", {1}, DataType::kFloat32);
  Ready(0, "h", {1}, DataType::kFloat16);    // summed in float32
  Ready(0, "b", {1}, DataType::kBfloat16);   // too
  Ready(0, "c", {1}, DataType::kComplex64);  // two float32
  Ready(0, "d", {1}, DataType::kFloat64);
  Ready(0, "z", {1}, DataType::kComplex128);  // two float64
  Signature sum;
  sum.op = ReduceOp::kSum;
  sum.dtype = DataType::kFloat64;
  sum.shape = {1};
  Ready(0, "s", sum);
  const ResponseList response_list = Decide();
  std::vector<size_t> sizes;
  for (const Response& response : response_list.responses) sizes.push_back(response.items.size());
  EXPECT_EQ(sizes, Sizes({4, 2, 1}));
}

TEST_F(FusionPlanTest, HalfTensorsCountWithTheirWireBytes) {
  CoordinatorOptions options;
  options.fusion_threshold = 400;
  Start(1, options);
  Ready(0, "a", {50}, DataType::kFloat16);  // 100 bytes, 200 on the wire
  Ready(0, "b", {50}, DataType::kFloat16);
  Ready(0, "c", {1}, DataType::kFloat16);
  const ResponseList response_list = Decide();
  ASSERT_EQ(response_list.responses.size(), 2u);
  EXPECT_EQ(response_list.responses[0].items.size(), 2u);
}

TEST_F(FusionPlanTest, OtherOperationsNeverFuse) {
  Start(1);
  for (int i = 0; i < 2; ++i) {
    for (OpKind kind :
         {OpKind::kAllgather, OpKind::kSparseAllgather, OpKind::kBroadcast, OpKind::kBarrier}) {
      Signature signature;
      signature.kind = kind;
      signature.shape = {1};
      Ready(0, Name(kind) + std::to_string(i), signature);
    }
  }
  EXPECT_EQ(Decide().responses.size(), 8u);
}

}  // namespace
}  // namespace tfmpi
