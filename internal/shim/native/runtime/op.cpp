// One generic call for every operator: look the schema up once, decode the arguments against it, callBoxed.
//
// callBoxed checks nothing: too few values are an out-of-bounds read, an int where a float is wanted is an internal assertion. So
// the argument kinds are read from the schema at lookup and every value is checked and coerced here; missing ones are filled from the schema.
#include "../internal.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstring>
#include <sstream>

namespace {

using ps::OptionalTensor;

enum class Kind { Tensor, Scalar, Int, Float, Bool, String, Device, Generator, Other };

struct Spec {
  Kind kind = Kind::Other;
  bool optional = false, list = false, optional_element = false;
  int32_t fixed = 0;  // int[2]: one int stands for two
  std::string text;
};

struct Op {
  c10::OperatorHandle handle;
  std::vector<Spec> arguments;
  std::string schema;
  bool multiplies = false;
};

// Whether an operator may multiply matrices, by its name. The others need no workspaces, such as copies, which have streams of their own.
bool multiplies(const std::string& name) {
  for (const char* word : {"mm", "mv", "matmul", "linear", "conv", "dot", "einsum", "attention"})
    if (name.find(word) != std::string::npos) return true;
  return false;
}

Kind kind_of(const c10::TypePtr& t) {
  switch (t->kind()) {
    case c10::TypeKind::TensorType: return Kind::Tensor;
    case c10::TypeKind::NumberType: return Kind::Scalar;
    case c10::TypeKind::IntType: return Kind::Int;
    case c10::TypeKind::SymIntType: return Kind::Int;
    case c10::TypeKind::FloatType: return Kind::Float;
    case c10::TypeKind::BoolType: return Kind::Bool;
    case c10::TypeKind::StringType: return Kind::String;
    case c10::TypeKind::DeviceObjType: return Kind::Device;
    case c10::TypeKind::GeneratorType: return Kind::Generator;
    default: return Kind::Other;
  }
}

Spec spec_of(const c10::Argument& a) {
  Spec s;
  s.text = a.type()->annotation_str();
  c10::TypePtr t = a.type();
  if (auto o = t->cast<c10::OptionalType>()) {
    s.optional = true;
    t = o->getElementType();
  }
  if (auto l = t->cast<c10::ListType>()) {
    s.list = true;
    t = l->getElementType();
    if (auto o = t->cast<c10::OptionalType>()) {
      s.optional_element = true;
      t = o->getElementType();
    }
    if (a.N()) s.fixed = *a.N();
  }
  s.kind = kind_of(t);
  return s;
}

const char* tag_name(uint64_t tag) {
  static const char* names[] = {"default", "None", "Tensor", "int", "float", "bool", "int[]", "float[]", "Tensor[]", "str", "Generator", "Device"};
  return tag < sizeof(names) / sizeof(names[0]) ? names[tag] : "?";
}

double as_double(uint64_t w) {
  double d;
  memcpy(&d, &w, sizeof d);
  return d;
}

at::Generator generator(uint64_t seed, const ps_mode* mode) {
  if (mode->device_index < 0) return at::detail::createCPUGenerator(seed);
  const c10::Device device(static_cast<c10::DeviceType>(mode->device_type), mode->device_index);
  auto g = at::globalContext().defaultGenerator(device).clone();
  g.set_current_seed(seed);
  return g;
}

// Decodes the value at *w against the schema's argument and advances w past it.
class Decoder {
 public:
  Decoder(const Op& op, const ps_mode* mode, const uint64_t* words, int32_t n) : op_(op), mode_(mode), w_(words), end_(words + n) {}

  bool done() const { return w_ >= end_; }

  c10::IValue next(size_t index) {
    const auto& argument = op_.handle.schema().arguments()[index];
    const Spec& s = op_.arguments[index];
    const uint64_t tag = done() ? static_cast<uint64_t>(PS_DEFAULT) : *w_++;
    if (tag == PS_DEFAULT) {
      TORCH_CHECK(argument.default_value().has_value(), "missing argument ", index, " (", argument.name(), ") of ", op_.schema);
      return *argument.default_value();
    }
    if (tag == PS_NONE) {
      if (!s.optional) mismatch(index, tag);
      return c10::IValue();
    }
    if (s.list) return list(s, index, tag);
    switch (tag) {
      case PS_TENSOR: {
        if (s.kind != Kind::Tensor) mismatch(index, tag);
        return ps::borrow(static_cast<ps_tensor>(*w_++));
      }
      case PS_INT: {
        const auto v = static_cast<int64_t>(*w_++);
        if (s.kind == Kind::Float) return static_cast<double>(v);
        if (s.kind != Kind::Int && s.kind != Kind::Scalar) mismatch(index, tag);
        return v;
      }
      case PS_DOUBLE: {
        if (s.kind != Kind::Float && s.kind != Kind::Scalar) mismatch(index, tag);
        return as_double(*w_++);
      }
      case PS_BOOL: {
        if (s.kind != Kind::Bool && s.kind != Kind::Scalar) mismatch(index, tag);
        return *w_++ != 0;
      }
      case PS_STRING: {
        if (s.kind != Kind::String) mismatch(index, tag);
        const uint64_t bytes = *w_++;
        std::string text(reinterpret_cast<const char*>(w_), bytes);
        w_ += (bytes + 7) / 8;
        return text;
      }
      case PS_SEED: {
        if (s.kind != Kind::Generator) mismatch(index, tag);
        return generator(*w_++, mode_);
      }
      case PS_DEVICE: {
        if (s.kind != Kind::Device) mismatch(index, tag);
        const auto type = static_cast<c10::DeviceType>(*w_++);
        return c10::Device(type, static_cast<c10::DeviceIndex>(static_cast<int64_t>(*w_++)));
      }
      default: mismatch(index, tag);
    }
  }

 private:
  c10::IValue list(const Spec& s, size_t index, uint64_t tag) {
    if (tag == PS_INT && s.kind == Kind::Int && s.fixed > 0) {
      const auto v = static_cast<int64_t>(*w_++);
      return c10::List<int64_t>(std::vector<int64_t>(s.fixed, v));
    }
    if (tag != PS_INTS && tag != PS_DOUBLES && tag != PS_TENSORS) mismatch(index, tag);
    const uint64_t n = *w_++;
    const uint64_t* from = w_;
    w_ += n;
    if (s.kind == Kind::Tensor && tag == PS_TENSORS) {
      if (s.optional_element) {
        c10::List<OptionalTensor> out;
        for (uint64_t i = 0; i < n; i++) out.push_back(from[i] == 0 ? OptionalTensor() : OptionalTensor(ps::borrow(static_cast<ps_tensor>(from[i]))));
        return out;
      }
      c10::List<at::Tensor> out;
      for (uint64_t i = 0; i < n; i++) out.push_back(ps::borrow(static_cast<ps_tensor>(from[i])));
      return out;
    }
    if (s.kind == Kind::Int && tag == PS_INTS) {
      c10::List<int64_t> out;
      for (uint64_t i = 0; i < n; i++) out.push_back(static_cast<int64_t>(from[i]));
      return out;
    }
    if ((s.kind == Kind::Float || s.kind == Kind::Scalar) && tag != PS_TENSORS) {
      c10::List<double> floats;
      c10::impl::GenericList scalars(c10::NumberType::get());
      for (uint64_t i = 0; i < n; i++) {
        const double v = tag == PS_INTS ? static_cast<double>(static_cast<int64_t>(from[i])) : as_double(from[i]);
        if (s.kind == Kind::Float) floats.push_back(v);
        else scalars.push_back(v);
      }
      return s.kind == Kind::Float ? c10::IValue(floats) : c10::IValue(scalars);
    }
    mismatch(index, tag);
  }

  [[noreturn]] void mismatch(size_t index, uint64_t tag) const {
    TORCH_CHECK(false, "argument ", index, " (", op_.handle.schema().arguments()[index].name(), ") wants ", op_.arguments[index].text, ", got ",
                tag_name(tag), " in ", op_.schema);
  }

  const Op& op_;
  const ps_mode* mode_;
  const uint64_t* w_;
  const uint64_t* end_;
};

uint64_t bits(double d) {
  uint64_t w;
  memcpy(&w, &d, sizeof w);
  return w;
}

// Encodes the results; on failure nothing that was encoded is lost, because encoding cannot fail after the size check.
void encode(std::vector<c10::IValue>& stack, uint64_t* out, int32_t capacity) {
  TORCH_CHECK(static_cast<int32_t>(stack.size()) * 3 < capacity, stack.size(), " results do not fit into ", capacity, " words");
  uint64_t* w = out + 1;
  for (auto& v : stack) {
    if (v.isTensor()) {
      *w++ = PS_TENSOR;
      *w++ = static_cast<uint64_t>(ps::give(std::move(v).toTensor()));
    } else if (v.isTensorList()) {
      auto list = std::move(v).toTensorVector();
      auto* array = static_cast<uint64_t*>(malloc(sizeof(uint64_t) * (list.size() + 1)));
      for (size_t i = 0; i < list.size(); i++) array[i] = static_cast<uint64_t>(ps::give(std::move(list[i])));
      *w++ = PS_TENSORS;
      *w++ = list.size();
      *w++ = reinterpret_cast<uint64_t>(array);
    } else if (v.isInt()) {
      *w++ = PS_INT;
      *w++ = static_cast<uint64_t>(v.toInt());
    } else if (v.isDouble()) {
      *w++ = PS_DOUBLE;
      *w++ = bits(v.toDouble());
    } else if (v.isBool()) {
      *w++ = PS_BOOL;
      *w++ = v.toBool() ? 1 : 0;
    } else {
      *w++ = PS_NONE;
    }
  }
  out[0] = static_cast<uint64_t>(w - out - 1);
}

}  // namespace

ps_error* ps_op_find(const char* name, const char* overload, ps_op* out, int32_t* arguments, int32_t* returns, const char** schema) {
  return ps::guarded([&] {
    auto found = c10::Dispatcher::singleton().findSchema({name, overload});
    TORCH_CHECK(found.has_value(), "this libtorch (", TORCH_VERSION, ") has no operator ", name, *overload ? "." : "", overload);
    auto* op = new Op{*found, {}, {}};
    std::ostringstream text;
    text << op->handle.schema();
    op->schema = text.str();
    op->multiplies = multiplies(name);
    for (const auto& a : op->handle.schema().arguments()) op->arguments.push_back(spec_of(a));
    *out = op;
    *arguments = static_cast<int32_t>(op->arguments.size());
    *returns = static_cast<int32_t>(op->handle.schema().returns().size());
    *schema = op->schema.c_str();
  });
}

ps_error* ps_call(ps_op handle, const ps_mode* mode, const uint64_t* words, int32_t n, uint64_t* out, int32_t capacity) {
  const Op& op = *static_cast<const Op*>(handle);
  return ps::guarded([&] {
    ps::Enter enter(mode);
    if (op.multiplies) ps::prepare_products(mode);
    std::vector<c10::IValue> stack;
    stack.reserve(op.arguments.size());
    Decoder decoder(op, mode, words, n);
    for (size_t i = 0; i < op.arguments.size(); i++) stack.push_back(decoder.next(i));
    TORCH_CHECK(decoder.done(), "too many arguments for ", op.schema);
    op.handle.callBoxed(&stack);
    encode(stack, out, capacity);
  });
}

void ps_take_list(uint64_t list, int32_t n, ps_tensor* out) {
  auto* array = reinterpret_cast<uint64_t*>(list);
  memcpy(out, array, sizeof(ps_tensor) * n);
  free(array);
}
