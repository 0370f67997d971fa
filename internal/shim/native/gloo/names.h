// The names of Gloo that libtorch's ProcessGroupGloo.hpp mentions. A PyTorch wheel has Gloo inside of
// libtorch_cpu, without Gloo's headers, and Debian's libgloo-dev is another version.
//
// Penstock makes, reads and frees no object of these types. It calls functions that libtorch exports,
// and holds Gloo's objects by the pointers that libtorch's header declares, so that no layout depends
// on this file. Virtual functions are here because libtorch's header overrides them.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
};

namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace transport

namespace rendezvous {
class Store {
 public:
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(30);
  virtual ~Store() = 0;
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};
}  // namespace rendezvous

}  // namespace gloo
