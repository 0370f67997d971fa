// Package torch binds libtorch: tensors, devices whose memory is counted and limited, operators,
// autograd.
//
// It is for code that must know which bytes are live and when. Every tensor belongs to a Ctx, a Ctx
// belongs to one goroutine, and no finalizer frees anything. Layers are in package nn.
//
//	c := torch.NewCtx(torch.Options{Grad: true})
//	defer c.Close()
//	x := torch.From(c, []float32{1, 2, 3}, 3)
//	err := torch.Try(func() { fmt.Println(torch.Values[float32](c.Mul(x, x))) })
//
// Operators panic with *Error when they fail, so that formulas need no error checks. Try turns the
// panic into an error, and so does every public entry of the packages above.
package torch
