#include "tests/core/simulation/simulation.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace tfmpi {

Simulation::Actor::Actor(int rank, bool is_engine, std::function<void()> body)
    : rank(rank), is_engine(is_engine), fiber(std::move(body)), deadline(TimePoint::max()) {}

Simulation::Simulation(SimulationOptions options)
    : options_(std::move(options)),
      now_(std::chrono::hours(1)),
      engines_(options_.ranks),
      killed_(options_.ranks),
      numbers_(static_cast<size_t>(options_.ranks) * Transport::kSharedNumbers),
      woken_(options_.ranks),
      to_(options_.ranks, std::vector<std::deque<Message>>(options_.ranks)),
      parts_(options_.ranks),
      arrived_(options_.ranks) {
  Clock::Use(this);
}

Simulation::~Simulation() {
  Abandon();
  Clock::Use(nullptr);
}

Simulation::Actor* Simulation::AddActor(int rank, bool is_engine, std::function<void()> body) {
  actors_.push_back(std::make_unique<Actor>(rank, is_engine, [body = std::move(body)] {
    try {
      body();
    } catch (const Abandoned&) {  // NOLINT: nothing is left to do
    }
  }));
  return actors_.back().get();
}

std::function<std::function<void()>(const std::function<void()>&)> Simulation::StartLoop(int rank) {
  return [this, rank](const std::function<void()>& loop) -> std::function<void()> {
    Actor* const actor = AddActor(rank, /*is_engine=*/true, loop);
    return [this, actor] { WaitUntil([actor] { return actor->fiber.ended(); }); };
  };
}

void Simulation::AddScript(int rank, std::function<void()> script) {
  AddActor(rank, /*is_engine=*/false, std::move(script));
}

bool Simulation::IsThere(const Actor& actor) const {
  return actor.there == nullptr || actor.there();
}

bool Simulation::MayGoOn(const Actor& actor) const {
  return !IsOver(actor) && actor.not_before <= now_ && (actor.deadline <= now_ || IsThere(actor));
}

TimePoint Simulation::NextEvent() const {
  TimePoint next = TimePoint::max();
  for (const auto& actor : actors_) {
    if (IsOver(*actor)) continue;
    const TimePoint due = IsThere(*actor) ? now_ : actor->deadline;
    next = std::min(next, std::max(due, actor->not_before));
  }
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (killed_[rank]) continue;
    for (const std::deque<Message>& messages : to_[rank]) {
      if (!messages.empty() && messages.front().there > now_) {
        next = std::min(next, messages.front().there);
      }
    }
  }
  return next;
}

// Of the actors that cannot go on.
TimePoint Simulation::NextDeadline() const {
  TimePoint next = TimePoint::max();
  for (const auto& actor : actors_) {
    if (!IsOver(*actor) && !MayGoOn(*actor)) next = std::min(next, actor->deadline);
  }
  return next;
}

std::string Simulation::Run() {
  constexpr uint64_t kMaxTurns = 3'000'000;  // for a run in which almost no time passes
  const TimePoint horizon = now_ + options_.horizon;
  std::vector<Actor*> ready;
  while (violation_.empty() && !abandoning_) {
    ready.clear();
    for (const auto& actor : actors_) {
      if (MayGoOn(*actor)) ready.push_back(actor.get());
    }
    if (ready.empty()) {
      const auto over = [this](const auto& actor) { return IsOver(*actor); };
      if (std::all_of(actors_.begin(), actors_.end(), over)) return "";
      const TimePoint next = NextEvent();
      if (next > horizon) return "a hang: " + DescribeWaits();
      now_ = std::max(next, now_);
      continue;
    }
    if (turns_ > kMaxTurns) return "no end: " + DescribeWaits();
    const int ways = static_cast<int>(ready.size());
    const bool may_skip =
        skips_ < options_.time_skips && NextDeadline() <= now_ + options_.longest_skip;
    const int way = Choose(ways + may_skip);
    if (abandoning_) break;
    if (way < ways) {
      Resume(ready[way]);
    } else {
      ++skips_;
      now_ = NextDeadline();
    }
  }
  if (abandoning_) Abandon();
  return violation_;
}

int Simulation::Choose(int ways) {
  if (ways == 1 || abandoning_) return 0;
  const int way = options_.choose(ways);
  if (current_ != nullptr) current_->choosing = Mix(current_->choosing, 1 + way);
  return way;
}

void Simulation::Resume(Actor* actor) {
  if (options_.on_turn && !abandoning_) {
    options_.on_turn(actor->rank);
    if (!MayGoOn(*actor)) return;
  }
  ++turns_;
  // All that an engine can see until it yields, except messages, which Receive adds.
  if (actor->is_engine && engines_[actor->rank] != nullptr) {
    const Engine& engine = *engines_[actor->rank];
    if (actor->rests) actor->history = Inspector::StateOf(engine);
    actor->rests = false;
    actor->history = Mix(actor->history, Inspector::RequestsOf(engine));
    actor->history = Mix(actor->history, word_.load());
    actor->history = Mix(actor->history, static_cast<uint64_t>(now_.time_since_epoch().count()));
  }
  actor->there = nullptr;
  actor->deadline = TimePoint::max();
  current_ = actor;
  actor->fiber.Resume();
  current_ = nullptr;
}

void Simulation::YieldHere() {
  current_->fiber.Yield();
  if (abandoning_) throw Abandoned();
}

void Simulation::Abandon() {
  abandoning_ = true;
  if (current_ != nullptr) return;  // Run goes on from there
  for (const auto& actor : actors_) {
    while (!actor->fiber.ended()) Resume(actor.get());
  }
}

void Simulation::Point(int where) {
  if (current_ == nullptr) return;
  current_->where = where;
  if (abandoning_) throw Abandoned();
  if (options_.pause) current_->not_before = now_ + options_.pause(current_->rank);
  YieldHere();
}

bool Simulation::WaitUntil(const std::function<bool()>& there, TimePoint deadline) {
  if (current_ == nullptr) return there();
  if (abandoning_) throw Abandoned();
  current_->there = there;
  current_->deadline = deadline;
  YieldHere();
  return there();
}

void Simulation::Note(uint64_t what) {
  current_->history = Mix(current_->history, what);
  current_->choosing = 0;
}

void Simulation::Done(uint64_t what) {
  current_->done += Mix(1, what);
  current_->choosing = 0;
}

void Simulation::Sleep(Clock::duration time) {
  // A destructor that runs because Abandoned was thrown must not throw.
  if (current_ == nullptr || std::uncaught_exceptions() > 0) {
    now_ += time;
    return;
  }
  const TimePoint until = now_ + time;
  WaitUntil([this, until] { return now_ >= until; }, until);
}

// A rank polls a word several times before it does something else. All that matters is whether
// others act before or after the last poll, so they may run only then.
void Simulation::Relax() {
  constexpr int kLooks = 16;
  if (current_ == nullptr || ++current_->looks % kLooks != 0) return;
  Point();
}

void Simulation::WaitForChange(const std::atomic<uint32_t>& word, uint32_t value,
                               Clock::duration limit) {
  WaitUntil([&word, value] { return word.load() != value; }, now_ + limit);
}

void Simulation::Kill(int rank) { killed_[rank] = 1; }

void Simulation::Freeze(int rank, TimePoint until) {
  for (const auto& actor : actors_) {
    if (actor->rank == rank) actor->not_before = until;
  }
}

void Simulation::Break(const std::string& reason) {
  broken_ = reason;
  woken_.assign(woken_.size(), 1);
}

uint64_t Simulation::FingerprintOf(const Actor& actor) const {
  const Engine* const engine = engines_[actor.rank];
  uint64_t hash = actor.fiber.ended();
  if (!actor.is_engine || engine == nullptr) {
    for (const uint64_t number : {actor.history, actor.done, actor.choosing}) {
      hash = Mix(hash, number);
    }
    return Mix(hash, static_cast<uint64_t>(actor.where));
  }
  hash = Mix(hash, actor.rests ? Inspector::StateOf(*engine) : actor.history);
  return Mix(Mix(hash, actor.rests), Inspector::RequestsOf(*engine));
}

uint64_t Simulation::Fingerprint() const {
  uint64_t hash = Mix(word_.load(), static_cast<uint64_t>(now_.time_since_epoch().count()));
  hash = Mix(hash, static_cast<uint64_t>(skips_));
  // If a script is choosing, it matters which one.
  hash = Mix(hash, current_ == nullptr ? 0 : 1 + static_cast<uint64_t>(current_->rank));
  for (const auto& actor : actors_) hash = Mix(hash, FingerprintOf(*actor));
  for (int rank = 0; rank < options_.ranks; ++rank) {
    hash = Mix(hash, woken_[rank] + 2 * arrived_[rank]);
    // In the order in which they will be read.
    std::vector<std::pair<uint64_t, uint64_t>> waiting;
    for (int from = 0; from < options_.ranks; ++from) {
      for (const Message& message : to_[rank][from]) {
        waiting.emplace_back(message.order, Mix(from, message.content));
      }
    }
    std::sort(waiting.begin(), waiting.end());
    for (const auto& message : waiting) hash = Mix(hash, message.second);
  }
  return hash;
}

std::string Simulation::DescribeWaits() const {
  std::string text;
  for (const auto& actor : actors_) {
    if (IsOver(*actor)) continue;
    text += (text.empty() ? "" : ", ") + std::string(actor->is_engine ? "engine " : "script ") +
            std::to_string(actor->rank);
  }
  return text + " did not end";
}

}  // namespace tfmpi
