// penstock::conv2d: aten::conv2d, but of few positions as a product of matrices whose backward adds the weight's gradient where it lies.
//
// oneDNN has weights in a layout of its own. It copies the weight into that for the output and, into another, for the gradient of the input, and copies the weight's gradient
// back, with every micro-batch. Where an image is down to a few positions and channels are many, these copies are most of the time: a weight of 512 x 512 x 3 x 3 is 9 MiB, and what it
// is multiplied with 150 KiB. So there the patches of the input become rows of a matrix, and the rest is a linear layer's products, which read the weight as it lies.
#include "node.hpp"
#include "product.hpp"

namespace ps {
namespace {

struct Window {
  int64_t kernel[2], stride[2], padding[2], dilation[2], in[2], out[2];
  int64_t images, channels;

  int64_t rows() const { return images * out[0] * out[1]; }
  int64_t columns() const { return channels * kernel[0] * kernel[1]; }

  // Calls f with the index of an element of the matrix of patches and of the element of the input that it is. Padding has none.
  template <class F>
  void each(F&& f) const {
    int64_t at = 0;
    for (int64_t n = 0; n < images; n++)
      for (int64_t y = 0; y < out[0]; y++)
        for (int64_t x = 0; x < out[1]; x++)
          for (int64_t c = 0; c < channels; c++)
            for (int64_t i = 0; i < kernel[0]; i++) {
              const int64_t row = y * stride[0] - padding[0] + i * dilation[0];
              for (int64_t j = 0; j < kernel[1]; j++, at++) {
                const int64_t column = x * stride[1] - padding[1] + j * dilation[1];
                if (row >= 0 && row < in[0] && column >= 0 && column < in[1]) f(at, ((n * channels + c) * in[0] + row) * in[1] + column);
              }
            }
  }

  at::Tensor patches(const at::Tensor& input) const {
    const at::Tensor from = input.contiguous();
    at::Tensor to = at::zeros({rows(), columns()}, input.options());
    const float* a = from.data_ptr<float>();
    float* b = to.data_ptr<float>();
    each([&](int64_t patch, int64_t element) { b[patch] = a[element]; });
    return to;
  }

  // The sum of patches over the input's elements.
  at::Tensor image(const at::Tensor& patches) const {
    at::Tensor to = at::zeros({images, channels, in[0], in[1]}, patches.options());
    const float* a = patches.data_ptr<float>();
    float* b = to.data_ptr<float>();
    each([&](int64_t patch, int64_t element) { b[element] += a[patch]; });
    return to;
  }
};

// Most positions, of all images of a micro-batch, for which the products are faster.
constexpr int64_t most_positions = 32;

// Is the convolution one of few positions? Then w is its window.
bool few(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups, Window& w) {
  if (groups != 1 || input.dim() != 4 || weight.dim() != 4 || input.size(1) != weight.size(1) || stride.size() != 2 || padding.size() != 2 || dilation.size() != 2) return false;
  w.images = input.size(0), w.channels = input.size(1);
  for (int d = 0; d < 2; d++) {
    w.kernel[d] = weight.size(2 + d), w.stride[d] = stride[d], w.padding[d] = padding[d], w.dilation[d] = dilation[d], w.in[d] = input.size(2 + d);
    if (w.stride[d] < 1 || w.padding[d] < 0 || w.dilation[d] < 1) return false;
    const int64_t span = w.in[d] + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1;
    if (span < 0) return false;
    w.out[d] = span / w.stride[d] + 1;
  }
  if (w.rows() > most_positions || (bias.defined() && bias.sizes() != at::IntArrayRef{weight.size(0)})) return false;
  return quick(input, weight, w.rows(), weight.size(0), w.columns()) && (!bias.defined() || quick(bias, weight, w.rows(), weight.size(0), w.columns()));
}

struct Conv2d final : Node {
  using Node::Node;
  Window window;

  variable_list backward(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return variable_list(3);
    const at::Tensor input = saved(0), weight = saved(1);
    const int64_t out = grads[0].size(1);
    const at::Tensor grad = grads[0].permute({0, 2, 3, 1}).reshape({window.rows(), out}).contiguous();
    at::Tensor for_input, for_weight, for_bias;
    if (task_should_compute_output(0)) for_input = window.image(linear_for_input(grad, weight.reshape({out, window.columns()})));
    if (task_should_compute_output(1)) {
      const at::Tensor patches = window.patches(input);
      if (accumulates(weight)) linear_for_weight(grad, patches, weight.grad().view({out, window.columns()}));
      else for_weight = linear_for_weight(grad, patches, at::Tensor()).view(weight.sizes());
    }
    if (task_should_compute_output(2)) for_bias = grad.sum(0);
    return {for_input, for_weight, for_bias};
  }
};

at::Tensor conv2d(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                  int64_t groups) {
  const at::Tensor b = bias.has_value() ? *bias : at::Tensor();
  Window w;
  if (lowers(input) || !few(input, weight, b, stride, padding, dilation, groups, w)) return at::conv2d(input, weight, bias, stride, padding, dilation, groups);
  auto node = recorded<Conv2d>("Conv2dBackward", {input, weight, b});
  at::AutoDispatchBelowADInplaceOrView guard;
  const int64_t out = weight.size(0);
  const at::Tensor rows = linear_output(w.patches(input), weight.reshape({out, w.columns()}), b);
  at::Tensor result = rows.view({w.images, w.out[0], w.out[1], out}).permute({0, 3, 1, 2}).contiguous();
  if (node == nullptr) return result;
  node->window = w;
  node->save(weight.requires_grad() ? input : at::Tensor());
  node->save(input.requires_grad() || weight.requires_grad() ? weight : at::Tensor());
  return under(node, std::move(result));
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY_FRAGMENT(penstock, m) {
  m.def("conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1) -> Tensor");
  m.impl("conv2d", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::conv2d));
}
