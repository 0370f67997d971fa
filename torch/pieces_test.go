package torch_test

import (
	"bytes"
	"errors"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// The pieces of a tensor are its bytes, none is larger than a MiB, and all are whole elements.
func TestPieces(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	large := c.Randn(7, 100_003)
	for name, x := range map[string]*torch.Tensor{
		"large": large, "not contiguous": c.Transpose(large, 0, 1), "with a gradient": c.Share(large).SetRequiresGrad(true), "no elements": c.Zeros(torch.Float32, 0, 3), "a number": c.Zeros(torch.Float64),
		"bytes": c.Ones(torch.Uint8, 3<<20+1), "one piece": c.Ones(torch.Float32, 1<<18),
	} {
		var all []byte
		most := 0
		err := torch.Pieces(x, func(piece []byte) error {
			all, most = append(all, piece...), max(most, len(piece))
			return nil
		})
		if err != nil || !bytes.Equal(all, torch.Bytes(x)) || x.IsContiguous() && most > 1<<20 {
			t.Errorf("%s: %v; %d bytes, in pieces of up to %d", name, err, len(all), most)
		}
	}
	full, calls := errors.New("full"), 0
	if err := torch.Pieces(large, func([]byte) error { calls++; return full }); err != full || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
	if err := torch.Pieces(c.Zeros(torch.Float32, 1), nil); err == nil {
		t.Error("nothing takes the pieces, and all is well")
	}
}
