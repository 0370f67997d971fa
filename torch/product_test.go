package torch_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// Products are cut into parts for several threads. Together they are all of the product, whatever its sizes, and
// however its operands lie: sums of whole numbers have no rounding.
func TestProductsInParts(t *testing.T) {
	for _, dtype := range []torch.DType{torch.Float32, torch.Float64} {
		for _, size := range [][3]int64{{1, 1, 1}, {100, 130, 90}, {257, 300, 129}, {2000, 3, 400}, {3, 2000, 400}, {17, 65, 5000}, {640, 640, 32}, {512, 16, 1024}} {
			m, n, k := size[0], size[1], size[2]
			var want, added []byte
			for _, threads := range []int{1, 2, 5} {
				c := torchtest.New(t, torch.Options{Grad: true, Threads: threads, Seed: 3})
				random := rand.New(rand.NewPCG(1, 2))
				whole := func(rows, columns int64) *torch.Tensor {
					values := make([]float32, rows*columns)
					for i := range values {
						values[i] = float32(random.IntN(9) - 4)
					}
					return c.To(torch.From(c, values, rows, columns), dtype)
				}
				a, b, sum := whole(m, k), whole(k, n), whole(m, n)
				for _, x := range []*torch.Tensor{a, transposed(c, a)} {
					for _, w := range []*torch.Tensor{b, transposed(c, b)} {
						y := torch.Bytes(c.Mm(x, w))
						if want == nil {
							want = y
						}
						if string(y) != string(want) {
							t.Errorf("%v, %v with %d threads: another product", dtype, size, threads)
						}
					}
				}
				// the products of a linear layer, whose gradient is added to what is there
				weight := c.Clone(c.Transpose(b, 0, 1)).SetRequiresGrad(true)
				x := c.Clone(a).SetRequiresGrad(true)
				for range 2 {
					y := c.Linear(x, weight, nil)
					if string(torch.Bytes(y)) != string(want) {
						t.Errorf("%v, %v with %d threads: another output", dtype, size, threads)
					}
					c.Backward([]*torch.Tensor{y}, []*torch.Tensor{sum}, false)
				}
				grads := append(torch.Bytes(c.GradOf(weight)), torch.Bytes(c.GradOf(x))...)
				if added == nil {
					added = grads
				}
				if string(grads) != string(added) {
					t.Errorf("%v, %v with %d threads: other gradients", dtype, size, threads)
				}
				weight.SetGradOf(nil)
				x.SetGradOf(nil)
				c.Close()
			}
		}
	}
}

// transposed is a matrix that lies by columns.
func transposed(c *torch.Ctx, a *torch.Tensor) *torch.Tensor {
	return c.Transpose(c.Clone(c.Transpose(a, 0, 1)), 0, 1)
}

// A product is computed by as many threads as its context has, and by the caller alone where that is one. All operators share one pool of threads: with a pool for
// each library, threads would wait for work on cores that others need.
func TestProductsTakeTheThreadsOfTheirContext(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, threads := range []int{1, 2} {
		c := torchtest.New(t, torch.Options{Device: torch.CPU(1), Threads: threads})
		x, images := c.Ones(torch.Float32, 1200, 1200), c.Ones(torch.Float32, 16, 16, 64, 64)
		kernel := c.Ones(torch.Float32, 16, 16, 3, 3)
		pool := map[string]bool{}
		for name, product := range map[string]func(){
			"a linear layer's": func() { c.Linear(x, x, nil) },
			"the BLAS's":       func() { c.Mm(x, x) },
			"a convolution's":  func() { c.PlainConv2d(images, kernel, nil, []int64{1, 1}, []int64{1, 1}, []int64{1, 1}, 1) },
			"softmax's":        func() { c.Softmax(x, 1) },
		} {
			product()
			before, own := threadTimes(t), torch.ThreadTime()
			for range 10 {
				product()
			}
			caller := (torch.ThreadTime() - own).Nanoseconds()
			helper, most := "", int64(0) // the other thread that worked most
			for id, now := range threadTimes(t) {
				if id != fmt.Sprint(syscall.Gettid()) && now-before[id] > most {
					helper, most = id, now-before[id]
				}
			}
			if threads > 1 {
				pool[helper] = true
			}
			if shared := most > caller/5; shared != (threads > 1) {
				t.Errorf("%s product with %d threads: the caller took %d ns, and another thread at most %d", name, threads, caller, most)
			}
		}
		if len(pool) != threads-1 {
			t.Errorf("operators with %d threads had %d others; want one pool", threads, len(pool))
		}
	}
}

// threadTimes is the processor time in nanoseconds of each thread of this process.
func threadTimes(t *testing.T) map[string]int64 {
	files := must.Get(filepath.Glob("/proc/self/task/*/schedstat"))(t)
	times := map[string]int64{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		var on int64
		if _, err := fmt.Sscan(string(text), &on); err != nil {
			t.Fatal(err)
		}
		times[filepath.Base(filepath.Dir(f))] = on
	}
	return times
}
