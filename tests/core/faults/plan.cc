#include <algorithm>

#include "tests/core/faults/schedule.h"

namespace tfmpi {

const char* Name(Fault fault) {
  constexpr const char* kNames[kNumFaults] = {
      "no fault",       "a silent death",   "a noticed death", "a freeze",
      "a lost message", "a double message", "a bad message",   "a bad collective"};
  return kNames[static_cast<size_t>(fault)];
}

const char* Name(Deviation deviation) {
  constexpr const char* kNames[kNumDeviations] = {
      "as the others", "has another shape", "leaves one out", "withdraws", "ends early", "leaves"};
  return kNames[static_cast<size_t>(deviation)];
}

namespace {

std::vector<Item> MakeItems(Random* random, int ranks) {
  std::vector<Item> items;
  const int count = 1 + random->Below(4);
  for (int i = 0; i < count; ++i) {
    Item item;
    item.name = std::string(1, static_cast<char>('a' + i));
    item.average = random->OneIn(2);
    item.more = random->OneIn(8) ? 300 : random->Below(20);  // some fill a buffer
    const int kind = random->Below(16);
    if (kind == 0) item.kind = OpKind::kBarrier;
    if (kind == 1) item.kind = OpKind::kBroadcast;
    if (kind == 2) item.kind = OpKind::kAllgather;
    if (item.kind == OpKind::kBroadcast) item.root = random->Below(ranks);
    if (item.kind != OpKind::kAllreduce) item.average = false;
    items.push_back(item);
  }
  return items;
}

}  // namespace

Plan MakePlan(uint64_t seed) {
  Random random(seed * 2 + 1);
  Plan plan;
  plan.seed = seed;
  plan.ranks = 2 + random.Below(3);
  plan.steps = 1 + random.Below(12);
  plan.node = random.OneIn(3);
  plan.shared_word = !random.OneIn(4);
  plan.may_poll = random.OneIn(4);
  plan.bypass = !random.OneIn(8);
  plan.goes_on = random.OneIn(2);
  // None, hardly any, and less and more than a rank's patience with votes.
  constexpr int kTimes[] = {0, 30, 1000, 30'000};
  plan.slow = kTimes[random.Below(4)];
  plan.latency = kTimes[random.Below(4)];
  plan.items = MakeItems(&random, plan.ranks);
  if (!random.OneIn(3)) plan.fault = static_cast<Fault>(1 + random.Below(kNumFaults - 1));
  plan.victim = random.Below(plan.ranks);
  plan.moment = random.Below(random.OneIn(2) ? 8 : 20 * plan.steps);
  plan.duration = random.Micros(random.OneIn(2) ? 20'000 : 3'000'000);
  if (random.OneIn(2)) {
    plan.deviation = static_cast<Deviation>(1 + random.Below(kNumDeviations - 1));
  }
  plan.deviant = random.Below(plan.ranks);
  plan.deviant_step = random.Below(plan.steps);
  return plan;
}

Plan MakeTreePlan(uint64_t seed) {
  Plan plan = MakePlan(seed);
  Random random(seed * 2 + 1'000'001);
  plan.node = false;
  plan.ranks = std::max(plan.ranks, 3) + random.Below(2);  // roots of broadcasts stay
  plan.per_node = 1 + random.Below(2);
  plan.fan_out = 1 + random.Below(2);
  plan.victim = random.Below(plan.ranks);
  plan.deviant = random.Below(plan.ranks);
  return plan;
}

std::string Plan::Describe() const {
  std::string text = "seed " + std::to_string(seed) + ": " + std::to_string(ranks) + " ranks, " +
                     std::to_string(steps) + " steps of";
  for (const Item& item : items) {
    text += " " + item.name + " (" + tfmpi::Name(item.kind) + ", " + std::to_string(item.more) +
            " more)";
  }
  text += node ? "; a node" : "";
  if (per_node != 0) {
    text +=
        "; nodes of " + std::to_string(per_node) + ", " + std::to_string(fan_out) + " below each";
  }
  text += shared_word ? "; a shared word" : "; no shared word";
  if (may_poll) text += ", polls";
  if (!bypass) text += ", no votes";
  text += "; turns up to " + std::to_string(slow) + " us, messages " + std::to_string(latency) +
          " us; scripts " + (goes_on ? "go on" : "stop") + " after an error";
  if (deviation != Deviation::kNone) {
    text += "; rank " + std::to_string(deviant) + " " + Name(deviation) + " at step " +
            std::to_string(deviant_step);
  }
  text += std::string("; ") + Name(fault);
  if (fault != Fault::kNone) {
    text += " of rank " + std::to_string(victim) + ", moment " + std::to_string(moment);
  }
  return text;
}

}  // namespace tfmpi
