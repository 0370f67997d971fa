// Handles, and data in and out.
#include "../internal.hpp"

#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <unordered_map>

void ps_retain(ps_tensor t) {
  if (t != 0) c10::raw::intrusive_ptr::incref(reinterpret_cast<at::TensorImpl*>(t));
}

void ps_release(ps_tensor t) {
  if (t != 0) c10::raw::intrusive_ptr::decref(reinterpret_cast<at::TensorImpl*>(t));
}

void ps_describe(ps_tensor handle, int64_t* out) {
  const at::Tensor t = ps::borrow(handle);
  out[0] = static_cast<int64_t>(t.scalar_type());
  out[1] = static_cast<int64_t>(t.device().type());
  out[2] = t.device().index();
  out[3] = t.is_leaf();
  out[4] = t.dim();
  for (int64_t i = 0; i < t.dim() && 5 + i < PS_DESCRIPTION; i++) out[5 + i] = t.size(i);
}

int32_t ps_dtype(ps_tensor t) { return static_cast<int32_t>(ps::borrow(t).scalar_type()); }

int32_t ps_requires_grad(ps_tensor t) { return ps::borrow(t).requires_grad() ? 1 : 0; }

int64_t ps_numel(ps_tensor t) { return ps::borrow(t).numel(); }

uintptr_t ps_storage(ps_tensor handle, int64_t* bytes) {
  const at::Tensor t = ps::borrow(handle);
  *bytes = t.has_storage() ? static_cast<int64_t>(t.storage().nbytes()) : 0;
  return t.has_storage() ? reinterpret_cast<uintptr_t>(t.storage().unsafeGetStorageImpl()) : 0;
}

uint64_t ps_storage_hold(ps_tensor t) {
  return reinterpret_cast<uint64_t>(c10::raw::intrusive_ptr::make_weak(ps::borrow(t).storage().unsafeGetStorageImpl()));
}

void ps_storage_drop(uint64_t id) { c10::raw::weak_intrusive_ptr::decref(reinterpret_cast<c10::StorageImpl*>(id)); }

void ps_hollow(const ps_tensor* list, int32_t n) {
  std::unordered_map<at::TensorImpl*, size_t> known;  // how often these handles hold a tensor, and views the one that they are of
  for (int32_t i = 0; i < n; i++) {
    const at::Tensor t = ps::borrow(list[i]);
    ++known[t.unsafeGetTensorImpl()];
    const auto* view = torch::autograd::impl::get_view_autograd_meta(t);
    if (view == nullptr || known[t.unsafeGetTensorImpl()] > 1) continue;
    if (view->has_bw_view()) ++known[view->get_backward_view().base_.unsafeGetTensorImpl()];
    if (view->has_fw_view() && !view->shared_view_info()) ++known[view->get_forward_view().base_.unsafeGetTensorImpl()];
  }
  std::unordered_map<c10::StorageImpl*, size_t> ours;  // tensors that nobody else holds
  for (const auto& [t, count] : known)
    if (t->has_storage() && c10::raw::intrusive_ptr::use_count(t) == count) ++ours[t->storage().unsafeGetStorageImpl()];
  for (const auto& [s, count] : ours)
    if (c10::raw::intrusive_ptr::use_count(s) == count) s->set_data_ptr_noswap(at::DataPtr(nullptr, s->device()));
}

ps_error* ps_refill(const ps_mode* mode, ps_tensor t) {
  return ps::guarded([&] {
    ps::Enter enter(mode);
    const auto* impl = reinterpret_cast<at::TensorImpl*>(t);
    if (!impl->has_storage()) return;
    auto* s = impl->storage().unsafeGetStorageImpl();
    if (s->nbytes() == 0 || s->data_ptr().get() != nullptr) return;
    const at::Tensor zeros = at::zeros({static_cast<int64_t>(s->nbytes())}, at::TensorOptions().dtype(at::kByte).device(s->device()));
    s->set_data_ptr_noswap(zeros.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, s->device())));
  });
}

int64_t ps_changes(ps_tensor t) { return ps::borrow(t)._version(); }

ps_error* ps_from_bytes(const ps_mode* mode, const void* data, int64_t bytes, int32_t dtype, const int64_t* sizes, int32_t dims, ps_tensor* out) {
  return ps::guarded([&] {
    ps::Enter enter(mode);
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype));
    at::Tensor t = at::empty(at::IntArrayRef(sizes, dims), options);
    TORCH_CHECK(static_cast<int64_t>(t.nbytes()) == bytes, "the shape holds ", t.nbytes(), " bytes, the data has ", bytes);
    if (bytes > 0) memcpy(t.data_ptr(), data, bytes);
    if (mode->device_index >= 0) t = t.to(c10::Device(static_cast<c10::DeviceType>(mode->device_type), mode->device_index));
    *out = ps::give(std::move(t));
  });
}

ps_error* ps_to_bytes(const ps_mode* mode, ps_tensor handle, void* data, int64_t bytes) {
  return ps::guarded([&] {
    ps::Enter enter(mode);
    at::Tensor t = ps::borrow(handle);
    if (!t.is_cpu() || !t.is_contiguous()) t = t.detach().to(at::kCPU).contiguous();
    TORCH_CHECK(static_cast<int64_t>(t.nbytes()) == bytes, "the tensor holds ", t.nbytes(), " bytes, the destination ", bytes);
    if (bytes > 0) memcpy(data, t.data_ptr(), bytes);
  });
}

ps_error* ps_copy_from_bytes(const ps_mode* mode, ps_tensor handle, const void* data, int64_t bytes) {
  return ps::guarded([&] {
    ps::Enter enter(mode);
    const at::Tensor t = ps::borrow(handle).detach();
    TORCH_CHECK(static_cast<int64_t>(t.nbytes()) == bytes, "the tensor holds ", t.nbytes(), " bytes, the data has ", bytes);
    const at::Tensor from = at::from_blob(const_cast<void*>(data), t.sizes(), at::TensorOptions().dtype(t.scalar_type()));
    t.copy_(from);
  });
}
