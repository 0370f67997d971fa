package train

import (
	"fmt"

	"penstock/data"
	"penstock/torch"
)

// tensorOf copies an array to the context's device. It panics with *torch.Error if the device has no room.
func tensorOf(c *torch.Ctx, a data.Array) *torch.Tensor {
	switch a.Kind {
	case data.Float32:
		return torch.From(c, a.Float32, a.Shape...)
	case data.Int64:
		return torch.From(c, a.Int64, a.Shape...)
	case data.Uint8:
		return torch.From(c, a.Uint8, a.Shape...)
	}
	panic(fmt.Sprintf("train: a batch of %v", a.Kind))
}
