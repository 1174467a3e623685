#include "device/stream.h"

#include <chrono>
#include <cstring>
#include <random>
#include <set>
#include <thread>

namespace standin {
namespace {

constexpr unsigned kNonBlocking = 1;

struct Registry {
  std::mutex mutex;
  std::set<void*> streams, events;
  std::map<Device*, Stream*> defaults;
};
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

uint64_t NextId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// The default stream, if it has been used; created if `make`.
Stream* DefaultOf(Device* device, bool make) {
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    const auto found = registry().defaults.find(device);
    if (found != registry().defaults.end()) return found->second;
    if (!make) return nullptr;
  }
  auto* made = new Stream(device, 0, 0);
  std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().defaults.emplace(device, made).first->second;
}

std::vector<Stream*> StreamsOf(Device* device) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  std::vector<Stream*> found;
  for (void* handle : registry().streams) {
    auto* stream = static_cast<Stream*>(handle);
    if (stream->device == device) found.push_back(stream);
  }
  return found;
}

void Delay() {
  const int longest = settings().delay_us;
  if (longest <= 0) return;
  static thread_local std::minstd_rand random(static_cast<unsigned>(NextId()));
  std::this_thread::sleep_for(std::chrono::microseconds(random() % longest));
}

}  // namespace

void Graph::Run() const {
  for (const auto& node : nodes) {
    if (node->run) node->run();
    if (node->body != nullptr) node->body->Run();
  }
}

void Mark::Reach() {
  std::lock_guard<std::mutex> lock(mutex_);
  reached_ = true;
  seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  changed_.notify_all();
}

bool Mark::reached() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reached_;
}

void Mark::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
}

double Mark::seconds() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return seconds_;
}

std::shared_ptr<Mark> Event::Last() {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_;
}

void Event::Set(std::shared_ptr<Mark> mark) {
  std::lock_guard<std::mutex> lock(mutex_);
  last_ = std::move(mark);
}

Stream::Stream(Device* d, unsigned f, int p) : device(d), flags(f), priority(p), id(NextId()) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().streams.insert(this);
}

bool Stream::blocking() const { return (flags & kNonBlocking) == 0; }

void Stream::Enqueue(Operation operation) {
  std::lock_guard<std::mutex> lock(mutex_);
  operations_.push_back(std::move(operation));
  if (!started_) {
    started_ = true;
    std::thread([this] { Work(); }).detach();
  }
  changed_.notify_all();
}

std::shared_ptr<Mark> Stream::Tail() {
  auto mark = std::make_shared<Mark>();
  Enqueue([mark] { mark->Reach(); });
  return mark;
}

void Stream::Push(Operation operation) {
  if (Graph* graph = capturing()) {
    graph->nodes.push_back(std::make_shared<Node>(Node{std::move(operation)}));
    return;
  }
  if (blocking()) {
    Stream* main = DefaultOf(device, false);
    if (main == this) {
      for (Stream* other : StreamsOf(device)) {
        if (other == this || !other->blocking() || other->idle()) continue;
        Enqueue([mark = other->Tail()] { mark->Wait(); });
      }
    } else if (main != nullptr && !main->idle()) {
      Enqueue([mark = main->Tail()] { mark->Wait(); });
    }
  }
  Enqueue([run = std::move(operation)] {
    Delay();
    run();
  });
}

void Stream::Record(Event* event) {
  Graph* graph = capturing();
  Trace("record event %p on stream %zu", static_cast<void*>(event), size_t{id});
  auto mark = std::make_shared<Mark>(graph);
  if (graph == nullptr) Push([mark] { mark->Reach(); });
  event->Set(std::move(mark));
}

void Stream::Wait(Event* event) {
  auto mark = event->Last();
  Trace("stream %zu waits for event %p", size_t{id}, static_cast<void*>(event));
  if (mark == nullptr) return;
  if (mark->graph() != nullptr) {  //  the stream joins the capture
    std::lock_guard<std::mutex> lock(mutex_);
    capturing_ = mark->graph();
    return;
  }
  Push([mark] { mark->Wait(); });
}

bool Stream::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return operations_.empty() && !running_;
}

void Stream::Synchronize() {
  Add(kWaits);
  Trace("the host waits for stream %zu", size_t{id});
  std::unique_lock<std::mutex> lock(mutex_);
  if (operations_.empty() && !running_) return;
  lock.unlock();
  Tail()->Wait();
}

void Stream::Destroy() {
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().streams.erase(this);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (started_) {
    ending_ = true;
    changed_.notify_all();
    return;  // its thread ends it
  }
  lock.unlock();
  delete this;
}

void Stream::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    running_ = false;
    changed_.wait(lock, [this] { return ending_ || !operations_.empty(); });
    if (operations_.empty()) break;
    Operation operation = std::move(operations_.front());
    operations_.pop_front();
    running_ = true;
    lock.unlock();
    operation();
    operation = nullptr;
    lock.lock();
  }
  lock.unlock();
  delete this;
}

void Stream::BeginCapture(Graph* graph) {
  std::lock_guard<std::mutex> lock(mutex_);
  capturing_ = graph;
}

Graph* Stream::EndCapture() {
  Graph* graph = capturing();
  if (graph == nullptr) return nullptr;
  for (Stream* stream : StreamsOf(device)) {
    std::lock_guard<std::mutex> lock(stream->mutex_);
    if (stream->capturing_ == graph) stream->capturing_ = nullptr;
  }
  return graph;
}

Graph* Stream::capturing() {
  std::lock_guard<std::mutex> lock(mutex_);
  return capturing_;
}

bool IsStream(void* handle) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().streams.count(handle) > 0;
}

Stream* StreamOf(void* handle) {
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    Context* context = CurrentContext();
    return context == nullptr ? nullptr : DefaultOf(context->device, true);
  }
  return IsStream(handle) ? static_cast<Stream*>(handle) : nullptr;
}

Event* EventOf(void* handle) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().events.count(handle) > 0 ? static_cast<Event*>(handle) : nullptr;
}

void* NewEvent(unsigned flags) {
  auto* event = new Event(flags);
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().events.insert(event);
  return event;
}

void DeleteEvent(void* handle) {
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().events.erase(handle);
  }
  delete static_cast<Event*>(handle);
}

void Synchronize(Device* device) {
  for (Stream* stream : StreamsOf(device)) stream->Synchronize();
}

void FillElements(Pointer to, uint32_t value, unsigned width, size_t count) {
  auto* at = static_cast<char*>(Reach(to));
  if (width == 1) {
    std::memset(at, static_cast<int>(value), count);
    return;
  }
  for (size_t i = 0; i < count; ++i) std::memcpy(at + i * width, &value, width);
}

}  // namespace standin
