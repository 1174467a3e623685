// The table of names: what is pending, what has a number, and what is deleted.

#include "tensorflow_patches/core/agreement/name_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tfmpi {
namespace {

using Entry = NameTable::Entry;

Submission Of(const std::string& name, Ticket ticket) {
  Submission submission;
  submission.ticket = ticket;
  submission.request.name = name;
  return submission;
}

NamedSignature Float(const std::string& name, const Shape& shape) {
  NamedSignature named;
  named.name = name;
  named.signature.shape = shape;
  return named;
}

TEST(NameTable, KeepsRequestsOfANameInTheirOrder) {
  NameTable table;
  Entry* const entry = table.Add(Of("w", 1));
  EXPECT_EQ(table.Add(Of("w", 2)), entry);
  Submission first, second;
  EXPECT_EQ(table.TakeFirst(entry, &first), entry);
  EXPECT_FALSE(table.nothing_pending());
  EXPECT_EQ(table.FindPending("w"), entry);
  EXPECT_EQ(table.TakeFirst(entry, &second), nullptr) << "it has no number";
  EXPECT_EQ(first.ticket, 1u);
  EXPECT_EQ(second.ticket, 2u);
  EXPECT_TRUE(table.nothing_pending());
  EXPECT_EQ(table.FindPending("w"), nullptr);
}

TEST(NameTable, KeepsWhatHasANumber) {
  NameTable table;
  Entry* const entry = table.Add(Of("w", 1));
  table.Number(3, Float("w", {5}));
  EXPECT_EQ(entry->ids, std::vector<NameId>{3});
  Submission submission;
  EXPECT_EQ(table.TakeFirst(entry, &submission), entry);
  EXPECT_TRUE(table.nothing_pending());
  EXPECT_EQ(table.FindPending("w"), nullptr) << "nothing is pending under it";
  EXPECT_EQ(table.entry(3), entry);
  EXPECT_EQ(table.Add(Of("w", 2)), entry);
}

TEST(NameTable, ANameWithAnotherShapeGetsAnotherNumber) {
  NameTable table;
  table.Number(0, Float("w", {5}));
  const Signature& first = table.signature(0);
  for (NameId id = 1; id < 1000; ++id) table.Number(id, Float("v" + std::to_string(id), {1}));
  table.Number(1000, Float("w", {7}));
  EXPECT_EQ(&first, &table.signature(0)) << "it stays where it is";
  EXPECT_EQ(first.shape, Shape({5}));
  EXPECT_EQ(table.signature(1000).shape, Shape({7}));
  EXPECT_EQ(table.entry(0), table.entry(1000));
  const Entry& entry = *table.entry(0);
  EXPECT_EQ(entry.ids, std::vector<NameId>({1000, 0})) << "each shape keeps its number";
  EXPECT_EQ(table.IdOf(entry, Float("w", {5}).signature), 0u);
  EXPECT_EQ(table.IdOf(entry, Float("w", {7}).signature), 1000u);
  EXPECT_EQ(table.IdOf(entry, Float("w", {8}).signature), kNoId);
  EXPECT_TRUE(table.has(1000));
  EXPECT_FALSE(table.has(1001));
  EXPECT_EQ(table.size(), 1000u);
}

TEST(NameTable, FindsWhatIsPending) {
  NameTable table;
  table.Number(0, Float("known", {5}));
  table.Add(Of("a", 1));
  table.Add(Of("b", 2));
  table.Add(Of("b", 3));
  EXPECT_EQ(table.FindPending(Ticket{3}), table.FindPending("b"));
  EXPECT_EQ(table.FindPending(Ticket{4}), nullptr);
  std::vector<std::string> names = table.PendingNames();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, std::vector<std::string>({"a", "b"}));
}

}  // namespace
}  // namespace tfmpi
