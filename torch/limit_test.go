package torch_test

import (
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// Who restricts a device first need not go last. When each put back the limit that it had found,
// two pipes or modules that were closed in the order in which they were made left the first one's
// limit for good, and the second had none from the first Close on.
func TestRestrict(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(3)
	limit := func(reason string, want int64) {
		t.Helper()
		if got := d.Memory().Limit; got != want {
			t.Errorf("%s: the limit is %d, want %d", reason, got, want)
		}
	}
	first := d.Restrict(1000)
	limit("one", 1000)
	second := d.Restrict(500)
	limit("a lower one", 500)
	third := d.Restrict(2000)
	limit("a higher one", 500)
	first()
	limit("the first has gone", 500)
	second()
	limit("the lowest has gone", 2000)
	second()
	limit("again", 2000)
	third()
	limit("none is left", 0)

	d.SetLimit(700)
	defer d.SetLimit(0)
	release := d.Restrict(900)
	limit("above the device's own", 700)
	lower := d.Restrict(600)
	release()
	limit("below it", 600)
	lower()
	limit("the device's own", 700)
	gpu := torch.CUDA(0)
	release = gpu.Restrict(5)
	if got := gpu.Memory().Limit; got != 5 {
		t.Errorf("the limit of %v is %d, want 5", gpu, got)
	}
	release()
	if got := gpu.Memory(); got.Limit != 0 || got.Live != 0 {
		t.Errorf("%v has %+v, want no limit and nothing live", gpu, got)
	}
}
