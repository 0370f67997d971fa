package group

import "penstock/torch"

// flat runs f with the memory of a dense tensor as a tensor of one dimension, in the order of
// addresses. It panics with *torch.Error if t is not dense. The view is gone when f returns.
func flat(t *torch.Tensor, f func(*torch.Tensor)) {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	f(c.Call("aten::as_strided", "", t, []int64{t.Numel()}, []int64{1})[0].(*torch.Tensor))
}
