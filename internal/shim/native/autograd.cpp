// The unit of what takes part in autograd's graphs. One unit parses libtorch's headers once: they are nine tenths of the compiler's time.
#include "autograd/autograd.cpp"
#include "autograd/branch.cpp"
#include "autograd/checkpoint.cpp"
#include "autograd/cut.cpp"
#include "autograd/gelu.cpp"
#include "autograd/linear.cpp"
#include "autograd/product.cpp"
#include "autograd/split.cpp"
